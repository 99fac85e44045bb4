/* Maps code images of a package as targets/package/image.py does, without Python, and calls functions of them.

   driver PACKAGE SCRIPT MEMORY: words of the script are
     image OFFSET CODE CONSTANTS DATA ZEROS    the image at a place of the file; what follows is of it
     rebase PLACE      import PLACE NAME       of its table
     export PLACE NAME                         another image may import it
     call NAME COUNT ARGUMENT...               numbers, and @PLACE for an address in the memory; the result is printed
   MEMORY is read at the beginning and written at the end. Imports are functions of earlier images and of the C library. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static void fail(const char *what, const char *which) {
  printf("error: %s %s\n", what, which);
  exit(3);
}

/* A model with one thread. */
static void parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
  (void)threads, (void)flags;
  body(data);
}
static int one(void) { return 1; }
static int zero(void) { return 0; }

static struct { char name[256]; int64_t address; } known[1024];
static int count;

static void add(const char *name, int64_t address) {
  if (count == 1024) fail("too many symbols before", name);
  strncpy(known[count].name, name, 255);
  known[count++].address = address;
}

/* An entry imports functions of CPython and torch, which kernels do not call: their address is that of nothing. */
static int64_t address_of(const char *name) {
  for (int k = 0; k < count; k++)
    if (!strcmp(known[k].name, name)) return known[k].address;
  return 0;
}

static char *map(int file, int64_t offset, int64_t code, int64_t constants, int64_t data, int64_t zeros) {
  int64_t size = code + constants + data;
  char *base = mmap(NULL, size + zeros, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int64_t starts[] = {0, code, code + constants, size};
  const int kinds[] = {PROT_READ | PROT_EXEC, PROT_READ, PROT_READ | PROT_WRITE};
  for (int k = 0; k < 3; k++) {
    int64_t bytes = starts[k + 1] - starts[k];
    if (bytes && mmap(base + starts[k], bytes, kinds[k], MAP_PRIVATE | MAP_FIXED, file, offset + starts[k]) == MAP_FAILED)
      fail("cannot map a part of", "an image");
  }
  return base;
}

static int64_t number(FILE *script) {
  int64_t found;
  if (fscanf(script, "%" SCNd64, &found) != 1) fail("a number is missing in", "the script");
  return found;
}

static void call(FILE *script, char *memory) {
  char name[256], word[64];
  int64_t a[8] = {0}, words = 0;
  if (fscanf(script, "%255s", name) != 1 || !address_of(name)) fail("there is no function", name);
  words = number(script);
  if (words > 8) fail("too many arguments for", name);
  for (int k = 0; k < words; k++) {
    if (fscanf(script, "%63s", word) != 1) fail("too few arguments for", name);
    a[k] = word[0] == '@' ? (int64_t)(memory + atoll(word + 1)) : atoll(word);
  }
  int64_t (*function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t) = (void *)address_of(name);
  printf("%" PRId64 "\n", function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]));
}

int main(int argc, char **argv) {
  int package = argc == 4 ? open(argv[1], O_RDONLY) : -1, file = argc == 4 ? open(argv[3], O_RDWR) : -1;
  FILE *script = argc == 4 ? fopen(argv[2], "r") : NULL;
  struct stat found;
  if (package < 0 || file < 0 || !script || fstat(file, &found)) fail("cannot open", "a file");
  char *memory = mmap(NULL, found.st_size + 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), *base = NULL;
  add("labs", (int64_t)labs), add("memset", (int64_t)memset), add("memcpy", (int64_t)memcpy), add("free", (int64_t)free);
  add("aligned_alloc", (int64_t)aligned_alloc), add("GOMP_parallel", (int64_t)parallel), add("omp_get_max_threads", (int64_t)one);
  add("omp_get_num_threads", (int64_t)one), add("omp_get_thread_num", (int64_t)zero);
  char word[256];
  while (fscanf(script, "%255s", word) == 1) {
    if (!strcmp(word, "image")) {
      int64_t sizes[5];
      for (int k = 0; k < 5; k++) sizes[k] = number(script);
      base = map(package, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]);
    } else if (!strcmp(word, "call")) {
      call(script, memory);
    } else if (!strcmp(word, "rebase")) {
      *(int64_t *)(base + number(script)) += (int64_t)base;
    } else {
      int64_t place = number(script);
      char name[256];
      if (fscanf(script, "%255s", name) != 1) fail("no name behind", word);
      if (!strcmp(word, "import")) *(int64_t *)(base + place) += address_of(name);
      else if (!strcmp(word, "export")) add(name, (int64_t)(base + place));
      else fail("there is no command", word);
    }
  }
  return 0;
}

/* Runs generated products on the jobs of a file and writes their results to another: driver JOBS RESULTS.

   products.h defines PRODUCTS, a line PRODUCT(symbol) for each function. A job: the number of a function, m, n, k, the strides of the rows
   of A, B and C, the bytes of A, B, C and the bias, all i64, then those bytes. Regions run on the calling thread. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "products.h"

typedef int64_t n;
typedef void product(void *, void *, void *, n, n, n, n, n, n, n, n, n, n, void *, void *, void *);
#define PRODUCT(name) extern product name;
PRODUCTS
#undef PRODUCT
#define PRODUCT(name) name,
static product *const products[] = {PRODUCTS};

int omp_get_thread_num(void) { return 0; }
int omp_get_num_threads(void) { return 1; }
int omp_get_max_threads(void) { return 1; }
void GOMP_parallel(void (*function)(void *), void *context, int threads, int flags) {
  (void)threads, (void)flags;
  function(context);
}

int main(int count, char **words) {
  FILE *jobs = count > 2 ? fopen(words[1], "rb") : NULL, *results = count > 2 ? fopen(words[2], "wb") : NULL;
  if (!jobs || !results) return 1;
  n job[11];
  while (fread(job, 8, 11, jobs) == 11) {
    char *part[4];
    for (int k = 0; k < 4; k++) {
      part[k] = malloc(job[7 + k] + 1);
      if (fread(part[k], 1, job[7 + k], jobs) != (size_t)job[7 + k]) return 2;
    }
    products[job[0]](part[0], part[1], part[2], job[1], job[2], job[3], job[4], job[5], job[6], 1, 0, 0, 0, part[3], NULL, NULL);
    fwrite(part[2], 1, job[9], results);
    for (int k = 0; k < 4; k++) free(part[k]);
  }
  return fclose(results);
}

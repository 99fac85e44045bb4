/* Runs an entry of the model NAME on tensors of a file, as often as is asked for, and writes the results of the last call to another file.

   driver ENTRY INPUTS RESULTS [CALLS [THREADS]]. A file: for each tensor i64 ndim, the sizes as i64, the elements in rows. */
#define STRING(x) #x
#define TEXT(x) STRING(x)
#define JOIN(a, b) a##b
#define CALL(a, b) JOIN(a, b)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include HEADER
#define FN(x) CALL(NAME, x)

static int64_t bytes_of(const stepwell_tensor *t) {
  int64_t n = t->dtype.bits / 8;
  for (int k = 0; k < t->ndim; k++) n *= t->shape[k];
  return n;
}

static void fail(const char *what) {
  printf("error: %s\n", what);
  exit(3);
}

struct job { int32_t entry; const char *inputs, *results; int calls; };

static void *work(void *argument) {
  struct job *job = argument;
  const stepwell_entry *entry = FN(_signature)(job->entry);
  void *model = FN(_open)();
  if (!entry || !model) fail("no entry or no model");
  stepwell_tensor in[32], out[32], *ins[32], *outs[32];
  FILE *file = fopen(job->inputs, "rb");
  for (int k = 0; k < entry->inputs; k++) {
    int64_t ndim, *shape = malloc(64 * sizeof(int64_t));
    if (fread(&ndim, 8, 1, file) != 1 || fread(shape, 8, ndim, file) != (size_t)ndim) fail("the inputs are too short");
    in[k] = stepwell_cpu_tensor(NULL, entry->input[k].dtype, ndim, shape);
    in[k].data = malloc(bytes_of(&in[k]) + 64);
    if (fread(in[k].data, 1, bytes_of(&in[k]), file) != (size_t)bytes_of(&in[k])) fail("the inputs are too short");
    ins[k] = &in[k];
  }
  fclose(file);
  for (int k = 0; k < entry->results; k++) {
    out[k] = stepwell_cpu_tensor(NULL, entry->result[k].dtype, entry->result[k].ndim, malloc(64 * sizeof(int64_t)));
    outs[k] = &out[k];
  }
  if (FN(_results)(model, job->entry, ins, entry->inputs, outs, entry->results)) fail(FN(_error)(model));
  for (int k = 0; k < entry->results; k++) out[k].data = malloc(bytes_of(&out[k]) + 64);
  for (int call = 0; call < job->calls; call++)
    if (FN(_run)(model, job->entry, ins, entry->inputs, outs, entry->results)) fail(FN(_error)(model));
  file = fopen(job->results, "wb");
  for (int k = 0; k < entry->results; k++) {
    int64_t ndim = out[k].ndim;
    fwrite(&ndim, 8, 1, file);
    fwrite(out[k].shape, 8, ndim, file);
    fwrite(out[k].data, 1, bytes_of(&out[k]), file);
  }
  fclose(file);
  printf("ran at %s\n", FN(_level)(model));
  FN(_close)(model);
  return NULL;
}

int main(int count, char **words) {
  struct job job = {FN(_find)(words[1]), words[2], words[3], count > 4 ? atoi(words[4]) : 1};
  int threads = count > 5 ? atoi(words[5]) : 1;
  if (threads == 1) return work(&job) != NULL;
  pthread_t handles[64];
  for (int k = 0; k < threads; k++) pthread_create(&handles[k], NULL, work, &job);
  for (int k = 0; k < threads; k++) pthread_join(handles[k], NULL);
  return 0;
}

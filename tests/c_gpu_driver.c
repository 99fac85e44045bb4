/* As c_driver.c, for a model NAME of a GPU: tensors are copied to the device and back by the driver, which is opened by its name. */
#define STRING(x) #x
#define TEXT(x) STRING(x)
#define JOIN(a, b) a##b
#define CALL(a, b) JOIN(a, b)
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include HEADER
#define FN(x) CALL(NAME, x)

static int (*cu_alloc)(void **, size_t), (*cu_to)(void *, const void *, size_t), (*cu_from)(void *, const void *, size_t);
static int (*cu_push)(void *), (*cu_retain)(void **, int), (*cu_init)(unsigned), (*cu_wait)(void);

static void fail(const char *what) {
  printf("error: %s\n", what);
  exit(3);
}

static void *function(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) fail(name);
  return found;
}

static int64_t bytes_of(const stepwell_tensor *t) {
  int64_t n = t->dtype.bits / 8;
  for (int k = 0; k < t->ndim; k++) n *= t->shape[k];
  return n;
}

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
  if (!library) fail("no driver");
  *(void **)&cu_alloc = function(library, "cuMemAlloc_v2");
  *(void **)&cu_to = function(library, "cuMemcpyHtoD_v2");
  *(void **)&cu_from = function(library, "cuMemcpyDtoH_v2");
  *(void **)&cu_push = function(library, "cuCtxPushCurrent_v2");
  *(void **)&cu_retain = function(library, "cuDevicePrimaryCtxRetain");
  *(void **)&cu_init = function(library, "cuInit");
  *(void **)&cu_wait = function(library, "cuCtxSynchronize");
  if (cu_init(0) || cu_retain(&context, 0) || cu_push(context)) fail("no device");
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

/* driver ENTRY INPUTS RESULTS CALLS: the results are those of the call with that number */
int main(int count, char **words) {
  if (count < 5) fail("driver ENTRY INPUTS RESULTS CALLS");
  open_driver();
  void *model = FN(_open)();
  if (!model || !FN(_level)(model)[0]) fail(FN(_error)(model));
  int32_t number = FN(_find)(words[1]), calls = atoi(words[4]);
  const stepwell_entry *entry = FN(_signature)(number);
  if (!entry) fail("no entry");
  stepwell_tensor in[32], out[32], *ins[32], *outs[32];
  FILE *file = fopen(words[2], "rb");
  for (int k = 0; k < entry->inputs; k++) {
    int64_t ndim, *shape = malloc(64 * sizeof(int64_t));
    if (fread(&ndim, 8, 1, file) != 1 || fread(shape, 8, ndim, file) != (size_t)ndim) fail("the inputs are too short");
    in[k] = stepwell_cpu_tensor(NULL, entry->input[k].dtype, ndim, shape);
    int64_t bytes = bytes_of(&in[k]);
    void *host = malloc(bytes + 64);
    if (fread(host, 1, bytes, file) != (size_t)bytes) fail("the inputs are too short");
    in[k].data = host;
    in[k].device.device_type = entry->input[k].device_type;
    if (in[k].device.device_type == 2 && (cu_alloc(&in[k].data, bytes + 64) || cu_to(in[k].data, host, bytes))) fail("no memory");
    ins[k] = &in[k];
  }
  fclose(file);
  for (int k = 0; k < entry->results; k++) {
    out[k] = stepwell_cpu_tensor(NULL, entry->result[k].dtype, entry->result[k].ndim, malloc(64 * sizeof(int64_t)));
    outs[k] = &out[k];
  }
  if (FN(_results)(model, number, ins, entry->inputs, outs, entry->results)) fail(FN(_error)(model));
  for (int k = 0; k < entry->results; k++)
    if (cu_alloc(&out[k].data, bytes_of(&out[k]) + 64)) fail("no memory");
  for (int call = 0; call < calls; call++)
    if (FN(_run)(model, number, ins, entry->inputs, outs, entry->results)) fail(FN(_error)(model));
  if (cu_wait()) fail("the device failed");
  file = fopen(words[3], "wb");
  for (int k = 0; k < entry->results; k++) {
    int64_t ndim = out[k].ndim, bytes = bytes_of(&out[k]);
    void *host = malloc(bytes + 64);
    if (cu_from(host, out[k].data, bytes)) fail("a result cannot be copied");
    fwrite(&ndim, 8, 1, file);
    fwrite(out[k].shape, 8, ndim, file);
    fwrite(host, 1, bytes, file);
  }
  fclose(file);
  double start = now();
  int more = count > 5 ? atoi(words[5]) : 0;
  for (int call = 0; call < more; call++)
    if (FN(_run)(model, number, ins, entry->inputs, outs, entry->results)) fail(FN(_error)(model));
  double launched = now();
  if (cu_wait()) fail("the device failed");
  printf("ran at %s", FN(_level)(model));
  if (more) printf(", %.1f us a call, %.1f us of the host", (now() - start) / more, (launched - start) / more);
  printf("\n");
  FN(_close)(model);
  return 0;
}

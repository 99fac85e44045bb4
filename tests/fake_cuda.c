/* A stand-in for the CUDA driver: memory is the host's, launches are counted and written to stdout, kernels compute nothing. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name[256]; } function;

static int capability = 90, memory, modules, contexts;

int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGet(int *device, int number) { *device = number; return number == 0 ? 0 : 101; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  const char *asked = getenv("FAKE_CAPABILITY");
  int found = asked ? atoi(asked) : capability;
  *value = attribute == 75 ? found / 10 : attribute == 76 ? found % 10 : -1;
  return device;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { contexts++; *context = &capability; return device; }
int cuDevicePrimaryCtxRelease_v2(int device) { contexts--; return device; }
int cuCtxPushCurrent_v2(void *context) { return context != &capability; }
int cuCtxPopCurrent_v2(void **context) { *context = &capability; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(void **out, size_t bytes) {
  if (bytes == 0) return 1;
  memory++;
  *out = calloc(1, bytes);
  return *out == NULL;
}
int cuMemFree_v2(void *block) { memory--; free(block); return 0; }
int cuMemAllocAsync(void **out, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(out, bytes); }
int cuMemFreeAsync(void *block, void *stream) { (void)stream; return cuMemFree_v2(block); }
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) { (void)stream; memcpy(to, from, bytes); return 0; }
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) { (void)stream; memmove(to, from, bytes); return 0; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); return 0; }
int cuModuleLoadData(void **module, const void *code) {
  modules++;
  *module = calloc(1, sizeof(function));
  return memcmp(code, "\177ELF", 4) && memcmp(code, "//", 2) ? 200 : 0;
}
int cuModuleGetFunction(void **found, void *module, const char *name) {
  snprintf(((function *)module)->name, 256, "%s", name);
  *found = module;
  return 0;
}
int cuModuleUnload(void *module) { modules--; free(module); return 0; }
int cuFuncSetAttribute(void *f, int attribute, int value) { (void)f; return attribute != 8 || value <= 49152; }
int cuStreamSynchronize(void *stream) { return stream != NULL; }
int cuGetErrorString(int code, const char **text) { *text = code == 101 ? "invalid device ordinal" : NULL; return 0; }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared, void *stream,
                   void **params, void **extra) {
  (void)stream;
  if (!params[0] || extra || ty != 1 || tz != 1 || shared > 232448) return 1;
  printf("%s grid %u %u %u threads %u\n", ((function *)f)->name, x, y, z, tx);
  return 0;
}

__attribute__((destructor)) static void report(void) { printf("left: memory %d, modules %d, contexts %d\n", memory, modules, contexts); }

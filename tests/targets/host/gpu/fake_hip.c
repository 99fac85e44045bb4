/* Stands for libamdhip64, and for what torch has around launches: notes what it is asked. */
#include <stdint.h>
#include <string.h>

int64_t recorded[13];   /* function, grid, block, shared memory, stream, two arguments, the first word behind them, guarded device */
char loaded[64];        /* the code of the last module */
static int device = 2;

int hipInit(unsigned flags) { return (int)flags; }
int hipGetDevice(int *out) { *out = device; return 0; }
const char *hipGetErrorName(int code) { return code == 1 ? "hipErrorInvalidValue" : 0; }
const char *hipGetErrorString(int code) { return code == 1 ? "invalid argument" : 0; }

int hipModuleLoadData(void **module, const void *image) {
  strncpy(loaded, image, sizeof loaded - 1);
  *module = loaded;
  return strncmp(loaded, "bad", 3) ? 0 : 209;
}

int hipModuleGetFunction(void **function, void *module, const char *name) {
  *function = (void *)(intptr_t)(1000 + name[0]);
  return module == loaded ? 0 : 1;
}

int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                          void **params, void **extra) {
  int64_t found[] = {(intptr_t)f, gx, gy, gz, bx, by, bz, shared, (intptr_t)stream, *(int64_t *)params[0], *(int64_t *)params[1],
                     *(int64_t *)params[2]};
  memcpy(recorded, found, sizeof found);
  return extra || gx == 77;
}

int aoti_torch_create_cuda_guard(int32_t index, void **guard) { *guard = &device; device = recorded[12] = index; return 0; }
int aoti_torch_delete_cuda_guard(void *guard) { device = -1; return guard != &device; }
int aoti_torch_get_current_cuda_stream(int32_t index, void **stream) { *stream = (void *)(intptr_t)(500 + index); return 0; }
int torch_from_blob(void) { return 0; }

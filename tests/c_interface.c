/* Uses what the driver does not: DLPack's tensors, other strides, reset, the signature, errors that leave nothing behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "three.h"

#define CHECK(x) if (!(x)) { printf("line %d: %s; the error is '%s'\n", __LINE__, #x, three_error(model)); return 1; }

static void keep(stepwell_managed_tensor *self) { (void)self; }

int main(void) {
  three_model *model = three_open();
  CHECK(model && three_level(model)[0]);
  CHECK(three_entries() == 3 && three_find("counter") == three_entry_counter && three_find("nothing") == -1);
  const stepwell_entry *entry = three_signature(three_entry_mlp);
  CHECK(entry->inputs == 1 && entry->results == 1 && entry->input[0].ndim == 2 && entry->input[0].dtype.bits == 32);
  CHECK(entry->input[0].shape[0].highest == 64 && entry->input[0].shape[0].symbol && !entry->input[0].shape[1].symbol);
  CHECK(entry->input[0].shape[1].lowest == 16 && entry->input[0].shape[1].highest == 16 && !three_signature(3));

  /* DLPack: the same numbers whether rows or columns follow each other */
  float rows[5 * 16], columns[16 * 5];
  for (int i = 0; i < 5; i++)
    for (int j = 0; j < 16; j++) rows[i * 16 + j] = columns[j * 5 + i] = (float)(i - j) / 8;
  int64_t sizes[2] = {5, 16}, across[2] = {1, 5};
  stepwell_managed_tensor first, second, *given[1], *made[2] = {0, 0};
  first.dl_tensor = stepwell_cpu_tensor(rows, STEPWELL_FLOAT32, 2, sizes);
  second.dl_tensor = stepwell_cpu_tensor(columns, STEPWELL_FLOAT32, 2, sizes);
  second.dl_tensor.strides = across;
  first.deleter = second.deleter = keep;
  given[0] = &first;
  CHECK(!three_run_dlpack(model, three_entry_mlp, given, 1, made, 1));
  given[0] = &second;
  CHECK(!three_run_dlpack(model, three_entry_mlp, given, 1, made + 1, 1));
  CHECK(made[0]->dl_tensor.ndim == 2 && made[0]->dl_tensor.shape[0] == 5 && made[0]->dl_tensor.shape[1] == 8);
  CHECK(made[0]->dl_tensor.strides[0] == 8 && ((uintptr_t)made[0]->dl_tensor.data & 63) == 0);
  CHECK(!memcmp(made[0]->dl_tensor.data, made[1]->dl_tensor.data, 5 * 8 * sizeof(float)));

  /* a result of other strides, behind an offset */
  float turned[4 + 8 * 5];
  int64_t result_sizes[2] = {5, 8}, result_strides[2] = {1, 5};
  stepwell_tensor y = stepwell_cpu_tensor(turned, STEPWELL_FLOAT32, 2, result_sizes), *results[1] = {&y};
  y.strides = result_strides;
  y.byte_offset = 16;
  stepwell_tensor *inputs[1] = {&first.dl_tensor};
  CHECK(!three_run(model, three_entry_mlp, inputs, 1, results, 1));
  for (int i = 0; i < 5; i++)
    for (int j = 0; j < 8; j++) CHECK(turned[4 + j * 5 + i] == ((float *)made[0]->dl_tensor.data)[i * 8 + j]);
  made[0]->deleter(made[0]);
  made[1]->deleter(made[1]);

  /* errors: nothing is made, and the next call works */
  sizes[1] = 15;
  made[0] = &first;
  CHECK(three_run_dlpack(model, three_entry_mlp, given, 1, made, 1) && !made[0] && strstr(three_error(model), "expected size 15==16"));
  CHECK(three_run(model, three_entry_mlp, inputs, 2, results, 1) && strstr(three_error(model), "mlp: expected 1 inputs, got 2 tensors"));
  CHECK(three_run(model, 9, inputs, 1, results, 1) && strstr(three_error(model), "there is no entry 9: the model has 3"));
  sizes[1] = 16;
  first.dl_tensor.data = NULL;
  CHECK(three_run(model, three_entry_mlp, inputs, 1, results, 1) && strstr(three_error(model), "has elements but no memory"));
  first.dl_tensor.data = rows;
  first.dl_tensor.device.device_type = 2;
  CHECK(three_run(model, three_entry_mlp, inputs, 1, results, 1) && strstr(three_error(model), "DLPack's device type 1"));
  first.dl_tensor.device.device_type = 1;
  CHECK(!three_run(model, three_entry_mlp, inputs, 1, results, 1) && !three_error(model)[0]);

  /* updated buffers: counted on, then reset; a second model has its own */
  float x[4 * 8] = {0}, twice[4 * 8];
  int64_t x_sizes[2] = {4, 8}, calls;
  stepwell_tensor a = stepwell_cpu_tensor(x, STEPWELL_FLOAT32, 2, x_sizes), b = stepwell_cpu_tensor(twice, STEPWELL_FLOAT32, 2, x_sizes);
  stepwell_tensor c = stepwell_cpu_tensor(&calls, STEPWELL_INT64, 0, NULL), *in[1] = {&a}, *out[2] = {&b, &c};
  for (int k = 1; k <= 3; k++) CHECK(!three_run(model, three_entry_counter, in, 1, out, 2) && calls == k);
  three_model *other = three_open();
  CHECK(!three_run(other, three_entry_counter, in, 1, out, 2) && calls == 1);
  CHECK(!three_reset(model) && !three_run(model, three_entry_counter, in, 1, out, 2) && calls == 1);
  three_close(other);
  three_close(NULL);
  three_threads(1);
  CHECK(!three_run(model, three_entry_mlp, inputs, 1, results, 1));
  three_close(model);
  printf("good\n");
  return 0;
}

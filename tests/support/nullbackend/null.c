/* A Triton backend for tests that answers every request at once with zeros of the configured shapes.
 *
 * It stands in for backends that cannot run on the machine of the tests; Triton's own core (configs, batchers, ensembles, statistics) is real.
 * A variable dimension (-1) takes the size that the first input has at the same place, else 1, and 1 where the tensor would
 * be larger than a mebibyte (a warm-up of many long texts would fill gigabytes). An execution takes no time, or what the parameters
 * launch_us and token_us say. Loading starts no process and reads no file.
 *
 * The declarations below are those of Triton's C API (tritonserver.h, tritonbackend.h, API version 1) that are used here, so that no header
 * of Triton is needed; the server itself provides the symbols.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct TRITONSERVER_Error Error;
typedef void Handle; /* TRITONBACKEND_Model, _ModelInstance, _Request, _Input, _Response, _Output, TRITONSERVER_Message */

enum { ERROR_INTERNAL = 1, MEMORY_CPU = 0, RELEASE_ALL = 1, RESPONSE_FINAL = 1, TYPE_BYTES = 13 };

extern Error* TRITONSERVER_ErrorNew(int code, const char* text);
extern void TRITONSERVER_ErrorDelete(Error* error);
extern int TRITONSERVER_StringToDataType(const char* name);
extern uint32_t TRITONSERVER_DataTypeByteSize(int type);
extern Error* TRITONSERVER_MessageSerializeToJson(Handle* message, const char** base, size_t* size);
extern Error* TRITONSERVER_MessageDelete(Handle* message);
extern Error* TRITONBACKEND_ModelConfig(Handle* model, uint32_t version, Handle** message);
extern Error* TRITONBACKEND_ModelSetState(Handle* model, void* state);
extern Error* TRITONBACKEND_ModelState(Handle* model, void** state);
extern Error* TRITONBACKEND_ModelInstanceModel(Handle* instance, Handle** model);
extern Error* TRITONBACKEND_RequestInputCount(Handle* request, uint32_t* count);
extern Error* TRITONBACKEND_RequestInputByIndex(Handle* request, uint32_t index, Handle** input);
extern Error* TRITONBACKEND_InputProperties(
    Handle* input, const char** name, int* type, const int64_t** shape, uint32_t* rank, uint64_t* size, uint32_t* buffers);
extern Error* TRITONBACKEND_RequestOutputCount(Handle* request, uint32_t* count);
extern Error* TRITONBACKEND_RequestOutputName(Handle* request, uint32_t index, const char** name);
extern Error* TRITONBACKEND_RequestRelease(Handle* request, uint32_t flags);
extern Error* TRITONBACKEND_ResponseNew(Handle** response, Handle* request);
extern Error* TRITONBACKEND_ResponseOutput(
    Handle* response, Handle** output, const char* name, int type, const int64_t* shape, uint32_t rank);
extern Error* TRITONBACKEND_OutputBuffer(Handle* output, void** buffer, uint64_t size, int* memory, int64_t* memory_id);
extern Error* TRITONBACKEND_ResponseSend(Handle* response, uint32_t flags, Error* error);
extern Error* TRITONBACKEND_ModelInstanceReportStatistics(
    Handle* instance, Handle* request, bool success, uint64_t start, uint64_t compute_start, uint64_t compute_end, uint64_t end);
extern Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    Handle* instance, uint64_t batch, uint64_t start, uint64_t compute_start, uint64_t compute_end, uint64_t end);

enum { MAX_RANK = 32, MAX_OUTPUTS = 256, LARGE = 1 << 20 };

typedef struct {
  char* name;
  int type;
  int64_t dims[MAX_RANK];
  uint32_t rank;
} Output;

typedef struct {
  int64_t max_batch_size;
  double launch_us, token_us; /* how long an execution takes: parameters of the config, 0 without */
  Output outputs[MAX_OUTPUTS];
  int count;
} Model;

/* --- the few things that are read from the model's config, which Triton gives as JSON without white space errors --- */

static const char* blank(const char* at)
{
  while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') at++;
  return at;
}

/* Past the closing quote of a string that begins at `at`. */
static const char* past_string(const char* at)
{
  for (at++; *at && *at != '"'; at++)
    if (*at == '\\' && at[1]) at++;
  return *at ? at + 1 : at;
}

/* Past one value of any kind. */
static const char* past_value(const char* at)
{
  at = blank(at);
  if (*at == '"') return past_string(at);
  if (*at != '{' && *at != '[') {
    while (*at && !strchr(",}] \n\t\r", *at)) at++;
    return at;
  }
  int depth = 0;
  do {
    if (*at == '"') {
      at = past_string(at);
      continue;
    }
    depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
    at++;
  } while (*at && depth);
  return at;
}

/* The value of a member of the object that begins at `at`; NULL where it has none. */
static const char* member(const char* at, const char* key)
{
  at = blank(at);
  if (*at != '{') return NULL;
  at = blank(at + 1);
  while (*at == '"') {
    const char* end = past_string(at);
    bool found = (size_t)(end - at) == strlen(key) + 2 && !strncmp(at + 1, key, strlen(key));
    at = blank(end);
    if (*at == ':') at = blank(at + 1);
    if (found) return at;
    at = blank(past_value(at));
    if (*at == ',') at = blank(at + 1);
  }
  return NULL;
}

/* First element of an array, or NULL; `next` steps to the following one. */
static const char* first(const char* at)
{
  if (!at || *at != '[') return NULL;
  at = blank(at + 1);
  return *at == ']' ? NULL : at;
}

static const char* next(const char* at)
{
  at = blank(past_value(at));
  return *at == ',' ? blank(at + 1) : NULL;
}

/* A copy of a string value with its escapes resolved (\uXXXX to UTF-8). */
static char* text(const char* at)
{
  const char* end = past_string(at);
  char* copy = calloc((size_t)(end - at) + 1, 1);
  char* to = copy;
  for (at++; at + 1 < end; at++) {
    if (*at != '\\') {
      *to++ = *at;
      continue;
    }
    at++;
    const char* plain = "bfnrt";
    const char* found = strchr(plain, *at);
    if (*at != 'u') {
      *to++ = found ? "\b\f\n\r\t"[found - plain] : *at;
      continue;
    }
    char digits[5] = {at[1], at[2], at[3], at[4], 0};
    unsigned code = (unsigned)strtoul(digits, NULL, 16);
    if (code < 0x80) {
      *to++ = (char)code;
    } else if (code < 0x800) {
      *to++ = (char)(0xC0 | code >> 6);
      *to++ = (char)(0x80 | (code & 0x3F));
    } else {
      *to++ = (char)(0xE0 | code >> 12);
      *to++ = (char)(0x80 | (code >> 6 & 0x3F));
      *to++ = (char)(0x80 | (code & 0x3F));
    }
    at += 4;
  }
  return copy;
}

static void read_output(Output* output, const char* at)
{
  const char* name = member(at, "name");
  const char* type = member(at, "data_type");
  const char* reshape = member(at, "reshape"); /* a model makes the reshaped tensor, Triton gives it the client's shape */
  const char* shape = reshape && *reshape == '{' ? member(reshape, "shape") : NULL;
  output->name = name ? text(name) : strdup("");
  char* word = type ? text(type) : strdup("");
  output->type = !strcmp(word, "TYPE_STRING") ? TYPE_BYTES : TRITONSERVER_StringToDataType(strncmp(word, "TYPE_", 5) ? word : word + 5);
  free(word);
  for (const char* dim = first(shape ? shape : member(at, "dims")); dim && output->rank < MAX_RANK; dim = next(dim))
    output->dims[output->rank++] = strtoll(*dim == '"' ? dim + 1 : dim, NULL, 10);
}

/* A number from the config's parameters, whose values are strings; 0 where it is not there. */
static double parameter(const char* json, const char* key)
{
  const char* all = member(json, "parameters");
  const char* one = all ? member(all, key) : NULL;
  const char* value = one ? member(one, "string_value") : NULL;
  return value && *value == '"' ? strtod(value + 1, NULL) : 0.0;
}

Error* TRITONBACKEND_ModelInitialize(Handle* handle)
{
  Handle* message = NULL;
  const char* base = NULL;
  size_t size = 0;
  Error* error = TRITONBACKEND_ModelConfig(handle, 1, &message);
  if (error) return error;
  error = TRITONSERVER_MessageSerializeToJson(message, &base, &size);
  if (!error) {
    char* json = calloc(size + 1, 1);
    Model* model = calloc(1, sizeof(Model));
    memcpy(json, base, size);
    const char* batch = member(json, "max_batch_size");
    model->max_batch_size = batch ? strtoll(batch, NULL, 10) : 0;
    model->launch_us = parameter(json, "launch_us");
    model->token_us = parameter(json, "token_us");
    for (const char* at = first(member(json, "output")); at && model->count < MAX_OUTPUTS; at = next(at))
      read_output(&model->outputs[model->count++], at);
    free(json);
    error = TRITONBACKEND_ModelSetState(handle, model);
  }
  TRITONSERVER_MessageDelete(message);
  return error;
}

Error* TRITONBACKEND_ModelFinalize(Handle* handle)
{
  Model* model = NULL;
  Error* error = TRITONBACKEND_ModelState(handle, (void**)&model);
  if (error || !model) return error;
  for (int i = 0; i < model->count; i++) free(model->outputs[i].name);
  free(model);
  return NULL;
}

static uint64_t now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* One output of zeros. A string of length 0 is four bytes of zero. */
static Error* zeros(Handle* response, const Output* output, const int64_t* shape, uint32_t rank, bool batched)
{
  int64_t full[MAX_RANK + 1];
  uint32_t count;
  uint64_t size;
  bool small = false;
  do {
    count = 0;
    size = output->type == TYPE_BYTES ? 4 : TRITONSERVER_DataTypeByteSize(output->type);
    if (batched) full[count++] = rank ? shape[0] : 1;
    for (uint32_t i = 0; i < output->rank; i++) {
      uint32_t place = count;
      full[count++] = output->dims[i] >= 0 ? output->dims[i] : place < rank && !small ? shape[place] : 1;
    }
    for (uint32_t i = 0; i < count; i++) size *= (uint64_t)full[i];
    small = !small && size > LARGE;
  } while (small);
  Handle* tensor = NULL;
  void* buffer = NULL;
  int memory = MEMORY_CPU;
  int64_t memory_id = 0;
  Error* error = TRITONBACKEND_ResponseOutput(response, &tensor, output->name, output->type, full, count);
  if (error) return error;
  error = TRITONBACKEND_OutputBuffer(tensor, &buffer, size, &memory, &memory_id);
  if (error) return error;
  if (memory > 1) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the null backend writes to host memory only");
  if (size) memset(buffer, 0, size);
  return NULL;
}

/* Answers one request; its rows are added to `batch`. */
static Error* answer(const Model* model, Handle* request, Handle* response, uint64_t* batch)
{
  uint32_t inputs = 0, wanted = 0, rank = 0, buffers = 0;
  const int64_t* shape = NULL;
  Handle* input = NULL;
  const char* name = NULL;
  int type = 0;
  uint64_t size = 0;
  Error* error = TRITONBACKEND_RequestInputCount(request, &inputs);
  if (!error && inputs) error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  if (!error && inputs) error = TRITONBACKEND_InputProperties(input, &name, &type, &shape, &rank, &size, &buffers);
  if (!error) error = TRITONBACKEND_RequestOutputCount(request, &wanted);
  *batch += model->max_batch_size > 0 && rank ? (uint64_t)shape[0] : 1;
  for (uint32_t i = 0; !error && i < wanted; i++) {
    error = TRITONBACKEND_RequestOutputName(request, i, &name);
    for (int k = 0; !error && k < model->count; k++)
      if (!strcmp(model->outputs[k].name, name)) {
        error = zeros(response, &model->outputs[k], shape, rank, model->max_batch_size > 0);
        break;
      }
  }
  return error;
}

/* Waits as long as a GPU would compute that pads all rows to the longest: launch_us, and token_us for each token. */
static void compute(const Model* model, Handle** requests, uint32_t count)
{
  int64_t rows = 0, longest = 0;
  if (model->launch_us <= 0 && model->token_us <= 0) return;
  for (uint32_t i = 0; i < count; i++) {
    Handle* input = NULL;
    const char* name = NULL;
    const int64_t* shape = NULL;
    uint32_t rank = 0, buffers = 0;
    uint64_t size = 0;
    int type = 0;
    Error* error = TRITONBACKEND_RequestInputByIndex(requests[i], 0, &input);
    if (!error) error = TRITONBACKEND_InputProperties(input, &name, &type, &shape, &rank, &size, &buffers);
    if (error) {
      TRITONSERVER_ErrorDelete(error);
      continue;
    }
    if (rank) rows += shape[0];
    if (rank > 1 && shape[1] > longest) longest = shape[1];
  }
  double ns = 1000.0 * (model->launch_us + model->token_us * (double)rows * (double)longest);
  struct timespec wait = {(time_t)(ns / 1e9), (long)(ns - 1e9 * (double)(time_t)(ns / 1e9))};
  nanosleep(&wait, NULL);
}

Error* TRITONBACKEND_ModelInstanceExecute(Handle* instance, Handle** requests, uint32_t count)
{
  Handle* handle = NULL;
  Model* model = NULL;
  uint64_t start = now(), batch = 0;
  Error* error = TRITONBACKEND_ModelInstanceModel(instance, &handle);
  if (!error) error = TRITONBACKEND_ModelState(handle, (void**)&model);
  if (error) return error;
  compute(model, requests, count);
  for (uint32_t i = 0; i < count; i++) {
    Handle* response = NULL;
    bool failed = false;
    error = TRITONBACKEND_ResponseNew(&response, requests[i]);
    if (!error) {
      error = answer(model, requests[i], response, &batch);
      failed = error != NULL;
      Error* unsent = TRITONBACKEND_ResponseSend(response, RESPONSE_FINAL, error);
      if (unsent) TRITONSERVER_ErrorDelete(unsent);
    }
    if (error) TRITONSERVER_ErrorDelete(error);
    uint64_t end = now();
    TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], !failed, start, start, end, end);
    TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL);
  }
  uint64_t end = now();
  TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, batch, start, start, end, end);
  return NULL;
}

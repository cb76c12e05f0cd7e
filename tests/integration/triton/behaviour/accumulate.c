/* A Triton backend of one function: Y = X + STATE, and STATE becomes Y. One INT32 per row.
 *
 * Triton finds it by its file name in the model's folder; the types are opaque here, and a null error means success. */
#include <stdint.h>
#include <string.h>

typedef struct TRITONBACKEND_Input TRITONBACKEND_Input;
typedef struct TRITONBACKEND_ModelInstance TRITONBACKEND_ModelInstance;
typedef struct TRITONBACKEND_Output TRITONBACKEND_Output;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONBACKEND_Response TRITONBACKEND_Response;
typedef struct TRITONBACKEND_State TRITONBACKEND_State;
typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef int Memory; /* TRITONSERVER_MemoryType: 0 is the CPU's */
typedef int Type;   /* TRITONSERVER_DataType */

enum { TYPE_INT32 = 8, FINAL = 1, RELEASE_ALL = 1 };

TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *, const char *, TRITONBACKEND_Input **);
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *, uint32_t, const void **, uint64_t *, Memory *, int64_t *);
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **, TRITONBACKEND_Request *);
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *, TRITONBACKEND_Output **, const char *, Type, const int64_t *, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *, void **, uint64_t, Memory *, int64_t *);
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *, uint32_t, TRITONSERVER_Error *);
TRITONSERVER_Error *TRITONBACKEND_StateNew(TRITONBACKEND_State **, TRITONBACKEND_Request *, const char *, Type, const int64_t *, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_StateBuffer(TRITONBACKEND_State *, void **, uint64_t, Memory *, int64_t *);
TRITONSERVER_Error *TRITONBACKEND_StateUpdate(TRITONBACKEND_State *);

static TRITONSERVER_Error *read_number(TRITONBACKEND_Request *request, const char *name, int32_t *number) {
  TRITONBACKEND_Input *input;
  TRITONSERVER_Error *error = TRITONBACKEND_RequestInput(request, name, &input);
  if (error != NULL) return error;
  const void *buffer;
  uint64_t bytes;
  Memory memory = 0;
  int64_t device = 0;
  error = TRITONBACKEND_InputBuffer(input, 0, &buffer, &bytes, &memory, &device);
  if (error == NULL) memcpy(number, buffer, sizeof(*number));
  return error;
}

static TRITONSERVER_Error *answer(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response) {
  const int64_t shape[2] = {1, 1};
  int32_t x, state;
  Memory memory = 0;
  int64_t device = 0;
  void *buffer;
  TRITONBACKEND_Output *output;
  TRITONBACKEND_State *next;
  TRITONSERVER_Error *error;
  if ((error = read_number(request, "X", &x)) != NULL) return error;
  if ((error = read_number(request, "STATE", &state)) != NULL) return error;
  const int32_t sum = x + state;
  if ((error = TRITONBACKEND_ResponseOutput(response, &output, "Y", TYPE_INT32, shape, 2)) != NULL) return error;
  if ((error = TRITONBACKEND_OutputBuffer(output, &buffer, sizeof(sum), &memory, &device)) != NULL) return error;
  memcpy(buffer, &sum, sizeof(sum));
  if ((error = TRITONBACKEND_StateNew(&next, request, "NEXT", TYPE_INT32, shape, 2)) != NULL) return error;
  memory = 0;
  if ((error = TRITONBACKEND_StateBuffer(next, &buffer, sizeof(sum), &memory, &device)) != NULL) return error;
  memcpy(buffer, &sum, sizeof(sum));
  return TRITONBACKEND_StateUpdate(next);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, const uint32_t count) {
  (void)instance;
  for (uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Response *response;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, requests[i]);
    if (error == NULL) TRITONBACKEND_ResponseSend(response, FINAL, answer(requests[i], response));
    TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL);
  }
  return NULL;
}

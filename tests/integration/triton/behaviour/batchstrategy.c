/* A custom batching library: at most LIMIT requests share a batch, whatever max_batch_size says.
 *
 * Triton looks up these five functions in the library and wants all or none. The types are opaque here, and a null error means success. */
#include <stdbool.h>
#include <stdlib.h>

#ifndef LIMIT
#error "compile with -DLIMIT=<requests per batch>"
#endif

typedef struct TRITONBACKEND_Batcher TRITONBACKEND_Batcher;
typedef struct TRITONBACKEND_Model TRITONBACKEND_Model;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONSERVER_Error TRITONSERVER_Error;

/* Once per model. */
TRITONSERVER_Error *TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher **batcher, TRITONBACKEND_Model *model) {
  (void)model;
  *batcher = NULL;
  return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher *batcher) {
  (void)batcher;
  return NULL;
}

/* Once per batch: the counter of its requests. */
TRITONSERVER_Error *TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher *batcher, void **counter) {
  (void)batcher;
  *counter = calloc(1, sizeof(int));
  return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchFinalize(void *counter) {
  free(counter);
  return NULL;
}

/* Once per request that could join the batch. */
TRITONSERVER_Error *TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request *request, void *counter, bool *include) {
  (void)request;
  *include = counter != NULL && ++*(int *)counter <= LIMIT;
  return NULL;
}

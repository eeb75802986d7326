// Errors as codes with a text; the text belongs to the calling thread.
#pragma once
#include <cuda_runtime.h>

#include "caovan_sm75.h"

namespace caovan {

__attribute__((format(printf, 1, 2))) int refuse(const char* format, ...);
int check_cuda(cudaError_t error, const char* what);

}  // namespace caovan

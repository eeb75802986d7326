#include "status.h"

#include <cstdarg>
#include <cstdio>

static thread_local char last_error[512] = "";

namespace caovan {

int refuse(const char* format, ...) {
  va_list list;
  va_start(list, format);
  std::vsnprintf(last_error, sizeof last_error, format, list);
  va_end(list);
  return CAOVAN_REFUSED;
}

int check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return CAOVAN_OK;
  std::snprintf(last_error, sizeof last_error, "cannot %s: CUDA says %s (%s)", what,
                cudaGetErrorString(error), cudaGetErrorName(error));
  return CAOVAN_CUDA;
}

}  // namespace caovan

extern "C" const char* caovan_sm75_last_error(void) { return last_error; }
extern "C" int caovan_sm75_abi(void) { return CAOVAN_SM75_ABI; }
extern "C" const char* caovan_sm75_version(void) { return CAOVAN_SM75_VERSION; }

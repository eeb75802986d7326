// What the C interface calls: launches of checked arguments, one file each.
#pragma once
#include <cuda_runtime.h>

#include "caovan_sm75.h"

namespace caovan {

int recurrent_load();
int recurrent_launch(const caovan_gdn_prefill_args& args, cudaStream_t stream);

int chunk_prepare_load();
int chunk_prepare_launch(const caovan_gdn_prefill_args& args, void* workspace, cudaStream_t stream);

int chunk_scan_load();
int chunk_scan_launch(const caovan_gdn_prefill_args& args, const void* workspace, cudaStream_t stream);

int decode_load();
int decode_launch(const caovan_gdn_decode_args& args, cudaStream_t stream);

int attention_int4_load();
int attention_int4_launch(const caovan_attention_args& args, void* workspace, cudaStream_t stream);

int attention_int8_load();
int attention_int8_launch(const caovan_attention_args& args, void* workspace, cudaStream_t stream);

int attention_half_load();
int attention_half_launch(const caovan_attention_args& args, void* workspace, cudaStream_t stream);

int attention_fp8_load();
int attention_fp8_launch(const caovan_attention_args& args, void* workspace, cudaStream_t stream);

int attention_combine_load();
int attention_combine_launch(const caovan_attention_args& args, const void* workspace, cudaStream_t stream);

int attention_prefill_load();
int attention_prefill_launch(const caovan_attention_args& args, cudaStream_t stream);

int kv_write_load();
int kv_write_launch(const caovan_kv_write_args& args, cudaStream_t stream);

int lm_head_load();
int lm_head_launch(const caovan_lm_head_args& args, cudaStream_t stream);

}  // namespace caovan

"""Names in the form in which profilers write them: symbols of the sources that ``commnames.LIBRARIES`` names, and of
public recordings.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from graphlink.read.commnames import (
    LIBRARIES,
    Meaning,
    kernel_meaning,
    kernel_path,
    meanings,
    op_meaning,
    range_meaning,
)

BACKEND_KERNELS = """
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096ul>)
ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)
ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)
ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)
ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]
ncclDevKernelDebug_Generic(ncclDevKernelArgsStorage<4096ul>)
ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K)
ncclSymkDevKernel_ReduceScatter_LDMC_sum_f8e4m3(ncclSymkDevWorkArgs4K)
ncclSymDevKernel_AllGather_LLMC(ncclSymDevArgs)
ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)
ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)
ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)
ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)
ncclAllReduceRingLLKernel_sum_f32(ncclColl)
ncclReduceScatterRingLLKernel_sum_f16(ncclColl)
ncclBroadcastRingLLKernel_copy_i8(ncclColl)
void ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)
_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE
rcclGenericKernel(ncclDevComm*)
mscclKernel_Sum_half_Simple_0(ncclDevComm*, mscclAlgo*, mscclWork*)
mcclKernel_AllReduce_RING_LL_Sum_float(mcclWorkElem)
oneccl_reduce_base<float, 2, 16, 1, 1, 2>
oneccl_allreduce_pcie
hcom_allReduce__503_0_1
hcom_allGather__428_1_1
""".strip().splitlines()

COMM_KERNELS = """
void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*, float*, dpsk::ep::internode::SourceMeta*, int4 const*)
void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*, bool const*, int4 const*)
void dpsk::ep::internode::cached_notify<false>(int, int, int, int, int*, int, int, int const*, int const*, int*, void*, void**)
void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int, int const*, int*, int const*, int*, int, bool const*)
void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*, int, int, int, int)
void deep_ep::internode_ll::dispatch<(bool)1, (bool)1, (int)6144>(void *, void *, int *, long *, int *)
void deep_ep::internode_ll::combine<true, 3, 10, 7168>(void*, void*, int*, void*, void const*, long const*, float const*)
void deep_ep::internode_ll::clean_low_latency_buffer<128>(int*, int, int*, int)
void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int*, int*, int4 const*)
void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*, __nv_bfloat16 const*)
void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int, int, bool const*, int*)
void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int, int, int**, int)
void deep_ep::intranode::barrier<8>(int**, int)
void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*, int*, int*, bool*, int, int, int, int)
_ZN7deep_ep12internode_ll8dispatchILb1ELi3ELi10ELi7168EEEvPvPfPi
_ZN7deep_ep9intranode7combineI13__nv_bfloat16Li8EEEvPT_Pf
void hybrid_ep::dispatch_kernel<hybrid_ep::warp_group<4, 0>, 8, 4>(hybrid_ep::dispatch_kernel_param_t<unsigned char>)
void hybrid_ep::combine_kernel<4, 8, 4>(hybrid_ep::combine_kernel_param_t)
hybrid_ep::device_sync_kernel(unsigned int*, unsigned int)
void rtp_llm::internode_ll::combine<true>(void*, int*)
void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)
void mori::moe::EpCombineInterNodeKernel<float>(mori::moe::EpDispatchCombineArgs<float>)
EpDispatchInterNodeKernel_bf16
void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)
void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __half*, int, int)
cross_device_reduce_1stage
void sglang::cross_device_reduce_1stage<__hip_bfloat16, 8>(sglang::RankData*, sglang::RankSignals, sglang::Signal*)
void aiter::cross_device_reduce_2stage_naive<__hip_bfloat16, 8>(aiter::RankData*, aiter::RankSignals)
void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*, aiter::RankSignals)
void aiter::allreduce_fusion_kernel_1stage<__hip_bfloat16, 8>(aiter::RankData*)
_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li4EEEvPNS_8RankDataENS_11RankSignalsEPNS_6SignalEPT_ii
void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 4>, true>, __half>(__half const*, __half*)
allreduce_prototype_twoshot
void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true, true>(tensorrt_llm::kernels::AllReduceParams)
void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true, true>(tensorrt_llm::kernels::AllReduceParams)
void tensorrt_llm::kernels::reduce_fusion::one_shot_all_reduce_norm_kernel<__half, 8>(tensorrt_llm::kernels::AllReduceParams)
void tensorrt_llm::kernels::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel<__half, 8>(AllReduceParams)
void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, __nv_bfloat16, 4, true>(Params)
void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<(Pattern)1, __nv_bfloat16, 4>(Params, int)
void tensorrt_llm::kernels::ar_fusion::lamport_initialize_kernel<float>(float*, int)
void tensorrt_llm::kernels::ar_fusion::moe::moereduce_allreduce_fusion_kernel_oneshot_lamport<__half, 8>(Params)
void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<__nv_bfloat16, 8>(LowPrecisionAllReduceParams)
void tensorrt_llm::kernels::mnnvl::oneshotAllreduceFusionKernel<8, __nv_bfloat16, true>(__nv_bfloat16*)
void tensorrt_llm::kernels::mnnvl::twoshotAllreduceKernel<8, __nv_bfloat16>(__nv_bfloat16*)
void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel<8, false>(FusedMoeCommKernelParam, FusedMoeWorkspace, bool)
tensorrt_llm::kernels::moe_comm::moeAllToAllMemsetKernel(MoeEpWorldInfo, MoeExpertParallelInfo)
tensorrt_llm::kernels::mnnvl_throughput::moeA2APrepareDispatchKernel(int*, int*, int, int)
void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<BlockPolicy, 8>(int const*, DispatchKernelPointers)
void tensorrt_llm::kernels::mnnvl_throughput::moeA2ACombineKernel<__nv_bfloat16, BlockPolicy, 8>(CombineKernelPointers)
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(AllReduceFusionPattern)1, __nv_bfloat16, 8>()
void flashinfer::trtllm_mnnvl_allreduce::twoshot_allreduce_kernel<8, __nv_bfloat16>(__nv_bfloat16*)
void flashinfer::trtllm_allreduce::twoShotAllReduceKernel<__half, 4>(AllReduceParams<__half>)
void tensorrt_llm::kernels::ub::userbuffers_fp16_sum_inplace_gpu_mc_rmsnorm<__half, 1024>(int, int)
void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int, int, int, int, int, int, void**, int)
void userbuffers_fp16_sum_inplace_gpu_mc_rs_oop_stride<8>(int, int)
kuserbuffers_pullsend(int, int, int*, int*)
kuserbuffers_pushrecv(int, int, int, int*, int*, int, unsigned long)
kuserbuffers_pushsendrecv_atomic(int*, int*, int4*, int4*, int)
void transformer_engine::userbuffers_fp16_sum_inplace_gpu_rr_ag<4>(int)
void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long, unsigned int**)
void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(float*, float*, unsigned long, unsigned int**)
void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, unsigned long, unsigned int**, unsigned long)
void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(float*, float*, unsigned long)
void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**, c10::BFloat16*)
void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, false>(c10::BFloat16**, c10::BFloat16*)
void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 4>(float**, unsigned long)
c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)
c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)
void c10d::intra_node_comm::hybridCubeMeshAllReduceKernel<16>(unsigned long*, unsigned long)
c10d::nvshmem_extension::exchangeSplitAndOffset(long*, long*, int, unsigned long)
c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)
nvshmemi_proxy_rma_entrypoint(void*, void*, rma_bytesdesc)
void nvshmemi_reduce_kernel<float, (rdxn_ops)4>(int, int, int, float*, float const*)
nvshmemi_proxy_quiet_entrypoint()
void nvshmemi_barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>(int, int)
rocshmem::rocshmem_barrier_all_kernel()
void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int, __half*, __half*, unsigned long)
void mscclpp::collective::allreduceAllPairs<(mscclpp::ReduceOp)0, float, false>(float*, float*)
dlslime::intranode_alltoall_kernel(int*, long*)
one_shot_all_reduce_kernel
multimem_all_reduce_kernel_0d1d2d
_all_gather_push_kernel
persistent_all_to_all_kernel
kernel_reduce_scatter_ring_push
void hybridCubeMeshAllReduceKernel<float>(float*)
""".strip().splitlines()

COMPUTE_KERNELS = """
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float>>>>
void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::NormTwoOps<float>>>(at::native::ReduceOp)
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)
void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>>
void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}>(int)
void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::_cuda_scatter_gather_internal_kernel<true, float>>(int)
void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)
void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float, unsigned int>)
void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_put_kernel_impl>>(long)
void at::native::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<float>)
void at::native::(anonymous namespace)::indexing_backward_kernel<float, 4>(long const*, long const*, float const*, float*)
void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)
void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<float, unsigned int, 1, 128, 1>(float*)
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>>()
void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, long*)
void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*, float*, int)
void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char**)
void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(float**, c10::BFloat16*)
void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float, float, int>()
void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*)
void at_cuda_detail::cub::DeviceReduceSingleTileKernel<at_cuda_detail::cub::DeviceReducePolicy<int, unsigned int>>(int*)
void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*, cub::ConstantInputIterator<int, int>, int*>>(long*)
void cub::DeviceCompactInitKernel<cub::ReduceByKeyScanTileState<int, int, true>, int*>(int*)
void cub::DeviceRadixSortSingleTileKernel<cub::DeviceRadixSortPolicy<int, int, int>::Policy800, false>(int const*)
void cub::DeviceSegmentedReduceKernel<cub::DispatchSegmentedReduce<float*>::Policy600, float*>(float*)
void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__reduce::ReduceAgent<float*>>(float*)
void rocprim::detail::block_reduce_kernel<float>(float*)
void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(Params)
void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel::Params)
void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2, cute::tuple<cute::C<1>>>>>(Params)
void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<cutlass_cudnn_train::MatrixShape<4, 128>>>()
void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, 4, 1, true>(Flash_fwd_params)
void flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>>>(Params)
void flash::compute_attn_ws<Flash_fwd_kernel_traits<192, 128, 128, 12>, true, flash::SingleTileScheduler>(Params)
flash_fwd_splitkv_combine_kernel
flash_fwd_mla_combine_kernel
void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, __hip_bfloat16, 128, 128, 256, 3, false>(__hip_bfloat16*)
void vllm::paged_attention_v2_reduce_kernel<__half, 128, 128, 512>(__half*, float const*)
void vllm::merge_attn_states_kernel<__nv_bfloat16, 128>(__nv_bfloat16*)
void vllm::moe::topkGating<8, 256, 4, 16, long>(float const*, bool const*)
void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*)
void vllm::moe::moe_sum_kernel<__nv_bfloat16, 8>(__nv_bfloat16*, __nv_bfloat16 const*)
void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*)
void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16 const*)
void flashinfer::PersistentVariableLengthMergeStatesKernel<4u, 128u>(float*)
void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u>(Params)
void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(cublasSplitKParams<float>, float const*)
void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(cublasLt::cublasSplitKParams<float>, float const*)
void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>>(float const*, float)
void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>(cublasDotParams)
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(cublasGemvParams)
sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN
ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn
volta_sgemm_128x64_nn
Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1
void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float, int, int)
void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnnTensorStruct, float const*)
void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, float>)
void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, cudnn::reduced_divisor, bool, int2, int, int)
void layer_norm::ln_bwd_finalize_kernel<layer_norm::Kernel_traits_finalize<7168u, __nv_bfloat16>>(layer_norm::BwdParams)
void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128, false, 128, false>(__nv_bfloat16 const*, int)
void cuda::reduce_fused_impl<__nv_bfloat16, false, false>(int4 const*, float const*, int const*, int4*)
cuda::expand_to_fused_with_scales_impl(int4 const*, int4*, float const*, float*, int const*)
void cuda::get_fused_mapping<512>(long const*, int*, int*, int*, int*, int*, int*)
void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>(float*)
void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*, unsigned char*)
void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3>(ck::Args)
void transformer_engine::context_parallel::thd_lse_kernel<double>(double*, float*)
void warpAllReduceSoftmax<float, 32>(float*)
void oneflow::cuda::softmax::SoftmaxBlockAllReduceImpl<float>(float*)
void blockAllReduceSum<float>(float*)
cross_entropy_fwd_kernel
triton_poi_fused_all_gather_into_tensor_wait_tensor_3
triton_red_fused__to_copy_add_all_reduce_native_layer_norm_wait_tensor_1
triton_poi_fused_reduce_scatter_tensor_0
triton_poi_fused_all_reduce_lift_fresh_0
triton_per_fused_sum_2
triton__0d1d2d
triton_tem_fused_mm_4
rotary_kernel
_copy_tensor_kernel
attn_fwd
fused_moe_kernel
void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256>(int4 const*)
kernel_cutlass_kernel_gemm_sm100
ccl_label_components
_ZN2at6native54_GLOBAL__N__d8ceb000_21_DistributionNormal_cu_17e44f7d43distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates
Memcpy PtoP (Device -> Device)
Memset (Device)
permute_pooled_embs_kernel
resolve_future_token_ids_kernel
""".strip().splitlines()

DOUBTFUL_KERNELS = """
void cutlass::device_kernel<flux::GemmReduceScatterKernel<cutlass::Sm90AllReduce>>(Params)
gemm_all_reduce_kernel
fused_matmul_reduce_scatter_kernel
all_gather_copy_in_kernel
pack_for_all_to_all
moe_dispatch_kernel
void (anonymous namespace)::dispatchKernel<4u, true, true>(int*, int*, unsigned long)
void tutel::combineKernel<float>(float*)
p2p_copy_kernel
_send_kernel
""".strip().splitlines()


def test_the_tables_are_large_and_each_name_stands_once() -> None:
    lists = (BACKEND_KERNELS + COMM_KERNELS, COMPUTE_KERNELS)
    assert [len(names) == len(set(names)) >= 80 for names in lists] == [True, True]


@pytest.mark.parametrize("name", BACKEND_KERNELS)
def test_kernels_of_process_groups_are_told(name: str) -> None:
    assert kernel_meaning(name) is Meaning.BACKEND


@pytest.mark.parametrize("name", COMM_KERNELS)
def test_kernels_that_communicate_are_told(name: str) -> None:
    assert kernel_meaning(name) is Meaning.COMMUNICATION


@pytest.mark.parametrize("name", COMPUTE_KERNELS)
def test_kernels_that_compute_are_no_communication_and_raise_no_doubt(name: str) -> None:
    assert kernel_meaning(name) in (Meaning.COMPUTATION, Meaning.NOTHING)


@pytest.mark.parametrize("name", DOUBTFUL_KERNELS)
def test_kernels_that_may_be_either_are_doubtful(name: str) -> None:
    assert kernel_meaning(name) is Meaning.DOUBTFUL


def test_every_library_of_the_table_has_a_kernel_among_the_examples_and_none_of_those_that_compute() -> None:
    for library, kernels in LIBRARIES.items():
        found = [
            name for name in BACKEND_KERNELS + COMM_KERNELS if re.search(kernels, kernel_path(name), re.IGNORECASE)
        ]
        assert found, library
        assert not [name for name in COMPUTE_KERNELS if re.search(kernels, kernel_path(name), re.IGNORECASE)], library


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ncclDevKernel_Generic_4(Args<4096ul>) [clone .kd]", "ncclDevKernel_Generic_4"),
        ("void (anonymous namespace)::one_shot<float, (bool)1>(float*)", "one_shot"),
        ("void a::(anonymous namespace)::dispatchKernel<4u>(int*)", "a::dispatchKernel"),
        ("void a::B<int>::run<c::d<e(f)>>(g<h>)", "a::B::run"),
        ("void vllm::cut_off<float, at::nat", "vllm::cut_off"),
        ("_ZN4vllm26cross_device_reduce_1stageI6__halfEEvv", "vllm::cross_device_reduce_1stage"),
        ("_Z8reduce_4PfS_", "reduce_4"),
        ("_Zbroken", "_Zbroken"),
        ("_ZN99999999short", "short"),
        ("", ""),
        ("<<<", "<<<"),
    ],
)
def test_the_path_of_a_kernel_is_its_name_without_templates_and_parameters(name: str, path: str) -> None:
    assert kernel_path(name) == path


@pytest.mark.parametrize(
    ("tell", "name", "expected"),
    [
        (op_meaning, "record_param_comms", Meaning.COMMUNICATION),
        (op_meaning, "c10d::allreduce_", Meaning.COMMUNICATION),
        (op_meaning, "c10d::send", Meaning.COMMUNICATION),
        (op_meaning, "_c10d_functional::all_gather_into_tensor", Meaning.COMMUNICATION),
        (op_meaning, "symm_mem::multimem_all_reduce_", Meaning.COMMUNICATION),
        (op_meaning, "symm_mem::fused_all_gather_matmul", Meaning.DOUBTFUL),
        (op_meaning, "vllm::all_reduce", Meaning.COMMUNICATION),
        (op_meaning, "_C_custom_ar::all_reduce", Meaning.COMMUNICATION),
        (op_meaning, "sglang::outplace_all_reduce", Meaning.COMMUNICATION),
        (op_meaning, "sglang::reg_reduce_scatter_tensor", Meaning.COMMUNICATION),
        (op_meaning, "trtllm::allreduce", Meaning.COMMUNICATION),
        (op_meaning, "vllm::fused_allreduce_rmsnorm", Meaning.DOUBTFUL),
        (op_meaning, "nccl:all_reduce", Meaning.COMMUNICATION),
        (op_meaning, "fsdp::all_gather_copy_in", Meaning.DOUBTFUL),
        (op_meaning, "autograd::engine::evaluate_function: _AllToAllBackward", Meaning.DOUBTFUL),
        (op_meaning, "_AllToAllBackward", Meaning.DOUBTFUL),
        (op_meaning, "aten::all", Meaning.NOTHING),
        (op_meaning, "aten::scatter_reduce", Meaning.NOTHING),
        (op_meaning, "vllm::unified_attention", Meaning.NOTHING),
        (range_meaning, "nccl:all_to_all", Meaning.COMMUNICATION),
        (range_meaning, "xccl:all_reduce", Meaning.COMMUNICATION),
        (range_meaning, "FSDP::all_gather", Meaning.DOUBTFUL),
        (range_meaning, "## alltoall_fwd_single ##", Meaning.DOUBTFUL),
        (range_meaning, "dispatch(F)", Meaning.NOTHING),
        (range_meaning, "DistributedDataParallel.forward", Meaning.NOTHING),
        (range_meaning, "ncclx::helper", Meaning.NOTHING),
    ],
)
def test_ops_and_ranges_tell_of_what_they_launch(tell: Callable[[str], Meaning], name: str, expected: Meaning) -> None:
    assert tell(name) is expected


def test_each_name_that_occurs_is_asked_for_once() -> None:
    asked = []

    def tell(name: str) -> int:
        asked.append(name)
        return len(name)

    assert meanings(("a", "bb", "ccc"), np.array([2, 0, 2, 2], np.int32), tell).tolist() == [3, 1, 3, 3]
    assert asked == ["a", "ccc"]
    assert meanings((), np.zeros(0, np.int32), tell).tolist() == []

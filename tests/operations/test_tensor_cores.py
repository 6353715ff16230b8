"""What names of kernels and ops tell about tensor cores; names as recordings have them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.model import Gpu
from graphlink.operations.tensor_cores import Use, dtype_of, is_eligible, types_taken, use_of
from graphlink.read.commnames import short_name

USED = (
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "turing_h1688cudnn_256x64_sliced1x2_ldg8_relu_exp_medium_nhwc_tn_v1",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align4>(int)",
    "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS_4arch15OpClassTensorOpENS_9GemmShape",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t>>(Flash_fwd_params)",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>::Params)",
    "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(int)",
    "Cijk_Alik_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN_1LDSB0_APM1",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32_wt32x32x8_ws1x1_wr2x1",
    "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1_bk0nk1_mn",
)
NOT_USED = (
    "volta_sgemm_128x64_nt",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
    "void "
    "cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(cutlass_80_simt_sgemm_256x128_8x4_nt_align1::Params)",
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasSplitKParams<float>)",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>(float)",
    "void xmma_cudnn::init_device_workspace_kernel<xmma_cudnn::implicit_gemm::fprop::Warp_specialized_params>(int)",
    "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)",
    "SubTensorOpWithCastTensor1d",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, "
    "3>>(int)",
    "void "
    "cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64>>>>(flash::FlashAttnBwdPreprocess::Params)",
    "triton_poi_fused_add_cos_sin_0",
    "triton_red_fused_native_layer_norm_1",
    "void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128, false>(__nv_bfloat16 const*)",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm50(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
    "void kernel_18840_of_somebody_copy(int)",  # 884 inside a longer number
)
UNKNOWN = ("triton_tem_fused_mm_3", "attn_fwd", "triton__0d1d2d3d4d5d6d", "sm90_something", "my_kernel")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        *((name, Use.USED) for name in USED),
        *((name, Use.NOT_USED) for name in NOT_USED),
        *((name, Use.UNKNOWN) for name in UNKNOWN),
    ],
)
def test_the_name_of_a_kernel_tells(name: str, use: Use) -> None:
    assert use_of(name) == use


@pytest.mark.parametrize(
    "part", ["flash", "gemm", "xmma_", "cijk_", "igemm_", "functor", "a", "<", "1688", "x::", "fmha_cutlassf_f32_"]
)
def test_long_names_take_no_longer_than_their_length(part: str) -> None:
    name = (part * 20_000)[:20_000]
    before = time.process_time()
    use_of(name)
    short_name(name)
    assert time.process_time() - before < 5  # s of this process; a square of the length would take minutes


@given(st.text(max_size=60))
def test_any_name_has_a_use_and_a_short_name(name: str) -> None:
    assert use_of(name) in Use
    assert isinstance(short_name(name), str)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int)",
            "vectorized_elementwise_kernel<CUDAFunctor_add>",
        ),
        ("void "
         "cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64>(x::Params)", "Kernel<cutlass_80_tensorop_s1688gemm_256x64>"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 10>(float*)", "softmax_warp_forward"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_", "add_rmsnorm_quant_kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("volta_sgemm_64x64_nt", "volta_sgemm_64x64_nt"),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("op", "eligible"),
    [
        ("aten::addmm", True), ("aten::mm", True), ("aten::convolution_backward", True), ("aten::cudnn_convolution", True),
        ("aten::conv2d", True), ("aten::_scaled_dot_product_flash_attention_backward", True), ("aten::_scaled_mm", True),
        ("aten::lstm", True),
        ("aten::linear", True), ("aten::add", False), ("aten::sum", False), ("aten::copy_", False), ("aten::max_pool2d", False),
        ("aten::addcmul_", False), ("AddmmBackward0", False), ("record_param_comms", False),
    ],
)  # fmt: skip
def test_ops_that_could_use_them(op: str, eligible: bool) -> None:
    assert is_eligible(op) == eligible


@pytest.mark.parametrize(
    ("recorded", "dtype"),
    [
        ('["float", "float", '
         '"Scalar"]', "float32"), ('["c10::BFloat16"]', "bfloat16"), ('["", "c10::Half"]', "float16"),
        ('["Tensor(c10::Half)", '
         '"Tensor(float)"]', "float16"), ('["GenericList[Tensor(float),Tensor(float)]"]', "float32"),
        ('["long int", "Int"]', ""), ("", ""), ("{", ""),
    ],
)  # fmt: skip
def test_the_type_of_the_first_tensor(recorded: str, dtype: str) -> None:
    assert dtype_of(recorded) == dtype


def test_types_by_generation() -> None:
    def taken(name: str, *capability: int) -> frozenset[str] | None:
        return types_taken([Gpu(0, name, (capability[0], capability[1]) if capability else None)])

    assert taken("Tesla P100", 6, 0) == frozenset()
    assert taken("Tesla V100-SXM2-32GB", 7, 0) == {"float16"}
    assert taken("NVIDIA GeForce GTX 1660", 7, 5) == frozenset()
    assert "float32" in (taken("NVIDIA A100", 8, 0) or ())
    assert "float8_e4m3fn" in (taken("NVIDIA H100", 9, 0) or ())
    assert taken("AMD Instinct MI300X", 9, 4) is None
    assert taken("NVIDIA A100") is None
    assert types_taken([]) is None
    assert types_taken([Gpu(0, "Tesla V100", (7, 0)), Gpu(1, "NVIDIA A100", (8, 0))]) is None

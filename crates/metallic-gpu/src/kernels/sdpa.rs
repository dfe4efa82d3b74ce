//! Attention of strided tensors that lie in no cache.

use metallic_core::DType;
use metallic_core::tensor::{Mask, Sdpa, View};

use super::attention::ATTEND;
use super::{Arg, COMMON, Constants, Family, Kernel, Launch, reads, work, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// One threadgroup per (head, query). Strides are in elements: from a head to the next, from a row, from a column.
    SdpaParams {
        per_kv: u32, queries: u32, keys: u32, dim: u32, window: u32, scale: f32, softcap: f32, sink: u32,
        q_head: u32, q_row: u32, q_col: u32, k_head: u32, k_row: u32, k_col: u32,
        v_head: u32, v_row: u32, v_col: u32, out_head: u32, out_row: u32, out_col: u32,
    }
}

pub(crate) const FAMILY: Family = Family {
    name: "sdpa",
    params: &[SdpaParams::MSL],
    uses: &[COMMON, ATTEND],
    text: include_str!("sdpa.metal"),
    kernels: &[("sdpa_f32", ARGS4), ("sdpa_f16", ARGS2), ("sdpa_bf16", ARGS2)],
};

const ARGS4: &[Arg] = &[reads("q", 4), reads("k", 4), reads("v", 4), reads("sinks", 4), writes("out", 4)];
const ARGS2: &[Arg] = &[reads("q", 2), reads("k", 2), reads("v", 2), reads("sinks", 4), writes("out", 2)];

fn unsupported(reason: String) -> GpuError {
    GpuError::Unsupported { op: "sdpa", reason }
}

/// A size or stride as kernels count.
pub(crate) fn word(op: &'static str, n: usize) -> Result<u32, GpuError> {
    u32::try_from(n).map_err(|_| GpuError::Unsupported {
        op,
        reason: format!("a size or stride of {n}; kernels count to {}", u32::MAX),
    })
}

/// The three strides of a tensor of rank 3.
fn strides(view: &View) -> Result<[u32; 3], GpuError> {
    let &[a, b, c] = view.strides() else {
        return Err(unsupported(format!(
            "a tensor of rank {}; [heads, rows, columns] is needed",
            view.rank()
        )));
    };
    Ok([word("sdpa", a)?, word("sdpa", b)?, word("sdpa", c)?])
}

/// Plans [`metallic_core::tensor::TensorOp::Sdpa`]: `(q [heads, m, d], k, v [kv_heads, n, d], sinks) -> out [heads, m, d]`,
/// each bound at its view's first element; `out` has elements.
pub(crate) fn sdpa(
    spec: &Sdpa,
    [q, k, v, out]: [&View; 4],
    sinks: Option<&View>,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let (function, args) = match q.dtype() {
        DType::F32 => ("sdpa_f32", ARGS4),
        DType::F16 => ("sdpa_f16", ARGS2),
        DType::BF16 => ("sdpa_bf16", ARGS2),
        other => return Err(unsupported(format!("queries of {other}; F32, F16 or BF16 are needed"))),
    };
    let [q_head, q_row, q_col] = strides(q)?;
    let [k_head, k_row, k_col] = strides(k)?;
    let [v_head, v_row, v_col] = strides(v)?;
    let [out_head, out_row, out_col] = strides(out)?;
    let (&[heads, queries, dim], &[kv_heads, keys, _]) = (q.shape(), k.shape()) else {
        return Err(unsupported("tensors of other ranks than 3".to_owned()));
    };
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(unsupported(format!("{heads} query heads for {kv_heads} key/value heads")));
    }
    let count = |n| word("sdpa", n);
    let (heads, queries, keys, dim) = (count(heads)?, count(queries)?, count(keys)?, count(dim)?);
    // `i + 1 + keys` is counted too.
    count(queries as usize + keys as usize)?;
    let (causal, window) = match spec.mask {
        Mask::Full => (0, u32::MAX),
        Mask::Causal => (1, u32::MAX),
        Mask::Window(window) => (1, u32::try_from(window).unwrap_or(u32::MAX)),
    };
    let bytes = |simdgroups: u64| 4 * (u64::from(dim) + simdgroups * (u64::from(dim) + 34));
    let most = u64::from(limits.threadgroup_memory);
    let wanted = u64::from(keys.div_ceil(32).clamp(1, 8).min(limits.max_threads / 32));
    let fitting = (1..=wanted.max(1)).rev().find(|s| bytes(*s) <= most);
    let Some(simdgroups) = fitting else {
        return Err(GpuError::Launch {
            kernel: function,
            what: "bytes of threadgroup memory",
            found: bytes(1),
            most,
        });
    };
    let params = SdpaParams {
        per_kv: heads / kv_heads as u32,
        queries,
        keys,
        dim,
        window,
        scale: spec.scale,
        softcap: spec.softcap.unwrap_or(1.0),
        sink: sinks.map_or(Ok(0), |s| count(s.strides().first().copied().unwrap_or(0)))?,
        q_head,
        q_row,
        q_col,
        k_head,
        k_row,
        k_col,
        v_head,
        v_row,
        v_col,
        out_head,
        out_row,
        out_col,
    };
    let dense = u32::from([q_col, k_col, v_col, out_col] == [1; 4]);
    let options = [causal, dense, u32::from(spec.softcap.is_some()), u32::from(sinks.is_some())];
    Ok(Launch {
        kernel: Kernel { family: &FAMILY, function, constants: Constants::of(options), args },
        params: params.params(),
        groups: [heads, queries, 1],
        threads: [simdgroups as u32 * 32, 1, 1],
        threadgroup_bytes: bytes(simdgroups).next_multiple_of(16) as u32,
        work: work([heads, queries, keys.min(window), dim, 2].map(|n| n as usize)),
    })
}

#[cfg(test)]
mod tests {
    use metallic_core::quant::{dequantize, quantize};

    use super::super::attention::scene::noise;
    use super::super::harness::{Data, f32s, run};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    const PLAIN: Sdpa = Sdpa { scale: 0.3, mask: Mask::Full, softcap: None };

    struct Tensor {
        view: View,
        bytes: Vec<u8>,
        numbers: Vec<f32>,
    }

    /// A tensor whose strides are those of `order` laid out with gaps.
    fn tensor(dtype: DType, shape: [usize; 3], order: [usize; 3], seed: usize) -> Tensor {
        let mut strides = [0; 3];
        let mut next = if order[2] == 2 { 1 } else { 2 };
        for axis in order.into_iter().rev() {
            strides[axis] = next;
            next = next * shape[axis].max(1) + usize::from(axis != 2);
        }
        let view = View::strided(dtype, 0, &shape, &strides).unwrap();
        let values: Vec<f32> = (0..next).map(|i| noise(i, seed)).collect();
        let mut bytes = vec![0; dtype.bytes_for(next).unwrap()];
        quantize(dtype, &values, &mut bytes).unwrap();
        let mut all = vec![0.0; next];
        dequantize(dtype, &bytes, &mut all).unwrap();
        let numbers = view.offsets().map(|at| all[at]).collect();
        Tensor { view, bytes, numbers }
    }

    struct Sizes {
        heads: usize,
        kv_heads: usize,
        m: usize,
        n: usize,
        d: usize,
    }

    fn formula(spec: &Sdpa, s: &Sizes, [q, k, v]: [&[f32]; 3], sinks: Option<&[f32]>) -> Vec<f32> {
        let mut out = Vec::new();
        for head in 0..s.heads {
            let kv = head / (s.heads / s.kv_heads);
            for i in 0..s.m {
                let query = &q[(head * s.m + i) * s.d..][..s.d];
                let range = spec.mask.visible(i, s.m, s.n);
                let scores: Vec<f64> = range
                    .clone()
                    .map(|j| {
                        let key = &k[(kv * s.n + j) * s.d..][..s.d];
                        let dot: f64 =
                            query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let score = dot * f64::from(spec.scale);
                        spec.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                    })
                    .collect();
                let sink = sinks.map(|s| f64::from(s[head]));
                let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - top).exp()).sum();
                out.extend((0..s.d).map(|c| {
                    let weighted = range
                        .clone()
                        .zip(&scores)
                        .map(|(j, score)| (score - top).exp() / sum * f64::from(v[(kv * s.n + j) * s.d + c]));
                    weighted.sum::<f64>() as f32
                }));
            }
        }
        out
    }

    fn check(dtype: DType, spec: &Sdpa, s: &Sizes, order: [usize; 3], with_sinks: bool) {
        let q = tensor(dtype, [s.heads, s.m, s.d], order, 1);
        let k = tensor(dtype, [s.kv_heads, s.n, s.d], order, 2);
        let v = tensor(dtype, [s.kv_heads, s.n, s.d], [1, 0, 2], 3);
        let out = tensor(dtype, [s.heads, s.m, s.d], order, 4);
        // Every second of these numbers.
        let sink_values: Vec<f32> = (0..2 * s.heads).map(|i| i as f32 - 2.0).collect();
        let sink_view = View::strided(DType::F32, 0, &[s.heads], &[2]).unwrap();
        let sinks = with_sinks.then(|| sink_values.iter().copied().step_by(2).collect::<Vec<_>>());
        let launch =
            sdpa(spec, [&q.view, &k.view, &v.view, &out.view], with_sinks.then_some(&sink_view), &LIMITS)
                .unwrap();
        let args = [
            Data::Bytes(q.bytes),
            Data::Bytes(k.bytes),
            Data::Bytes(v.bytes),
            if with_sinks { f32s(&sink_values) } else { Data::Unused },
            Data::Room(out.bytes.len()),
        ];
        let Some(found) = run(&launch, &args) else { return };
        let mut all = vec![0.0; out.bytes.len() / dtype.block_bytes()];
        dequantize(dtype, &found[4], &mut all).unwrap();
        let expected = formula(spec, s, [&q.numbers, &k.numbers, &v.numbers], sinks.as_deref());
        let tolerance = match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        for (at, expected) in out.view.offsets().zip(expected) {
            let off = (all[at] - expected).abs();
            assert!(off <= tolerance, "{dtype}, {spec:?}, order {order:?}: {} is not {expected}", all[at]);
        }
    }

    #[test]
    fn dense_and_strided_tensors_of_every_type_give_the_formula() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for order in [[0, 1, 2], [1, 0, 2], [2, 0, 1]] {
                let sizes = Sizes { heads: 4, kv_heads: 2, m: 3, n: 37, d: 21 };
                check(dtype, &PLAIN, &sizes, order, false);
            }
        }
    }

    #[test]
    fn keys_of_any_number_and_heads_of_any_size_are_taken() {
        for n in [0, 1, 31, 32, 33, 64, 300] {
            check(DType::F32, &PLAIN, &Sizes { heads: 3, kv_heads: 1, m: 2, n, d: 8 }, [0, 1, 2], n == 0);
        }
        for d in [1, 2, 3, 64, 300, 1000] {
            check(DType::F32, &PLAIN, &Sizes { heads: 1, kv_heads: 1, m: 1, n: 70, d }, [0, 1, 2], false);
        }
    }

    #[test]
    fn masks_caps_and_sinks_hold_where_queries_outnumber_keys_too() {
        for mask in [Mask::Causal, Mask::Window(1), Mask::Window(5), Mask::Window(33)] {
            for (m, n) in [(40, 40), (3, 50), (9, 4)] {
                let spec = Sdpa { mask, softcap: (m == 3).then_some(0.5), ..PLAIN };
                check(DType::F32, &spec, &Sizes { heads: 2, kv_heads: 1, m, n, d: 6 }, [0, 1, 2], n == 4);
            }
        }
    }

    #[test]
    fn what_no_kernel_takes_is_refused_by_name() {
        let view = |dtype, shape: &[usize]| View::contiguous(dtype, shape).unwrap();
        let refused =
            |q: View, k: View| sdpa(&PLAIN, [&q, &k, &k, &q], None, &LIMITS).unwrap_err().to_string();
        let text = refused(view(DType::U32, &[1, 1, 8]), view(DType::U32, &[1, 1, 8]));
        assert!(text.contains("U32"), "{text}");
        let text = refused(view(DType::F32, &[3, 1, 8]), view(DType::F32, &[2, 1, 8]));
        assert!(text.contains("3 query heads"), "{text}");
        let text = refused(view(DType::F32, &[1, 1, 9000]), view(DType::F32, &[1, 1, 9000]));
        assert!(text.contains("threadgroup memory"), "{text}");
    }
}

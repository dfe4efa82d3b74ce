//! Attention over keys and values that are given, not kept.

use metallic_core::{Dim, Mask, Sdpa, TensorType};

use super::attention::ATTEND;
use super::{COMMON, Constants, Launch, Slot, Stage, Stages, family, typed, work};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// One threadgroup per (head, query).
    SdpaParams {
        per_kv: u32, queries: u32, keys: u32, dim: u32, window: u32, scale: f32, softcap: f32,
    }
}

family! {
    "sdpa" (SdpaParams) uses COMMON, ATTEND;
    "sdpa" each float of size { reads q: size, k: size, v: size, sinks: 4; writes out: size }
}

/// `(q [heads, m, d], k, v [kv_heads, n, d], sinks?) -> out [heads, m, d]`, all of fixed shapes with elements.
pub(crate) fn sdpa(spec: &Sdpa, inputs: &[TensorType], limits: &Limits) -> Result<Stages, GpuError> {
    let (q, k) = (inputs[0], inputs[1]);
    let (
        &[Dim::Fixed(heads), Dim::Fixed(queries), Dim::Fixed(dim)],
        &[Dim::Fixed(kv_heads), Dim::Fixed(keys), _],
    ) = (q.shape.dims(), k.shape.dims())
    else {
        let reason = format!("{q} over {k}; fixed shapes of rank 3 are needed");
        return Err(GpuError::unsupported("sdpa", reason));
    };
    let count = |n| typed::count("sdpa", n);
    let (heads, queries, keys, dim) = (count(heads)?, count(queries)?, count(keys)?, count(dim)?);
    // `i + 1 + keys` is counted too.
    count(queries as usize + keys as usize)?;
    let (causal, window) = match spec.mask {
        Mask::Full => (0, u32::MAX),
        Mask::Causal => (1, u32::MAX),
        Mask::Window(window) => (1, u32::try_from(window).unwrap_or(u32::MAX)),
    };
    let has_sinks = inputs.len() > 3;
    let options = [causal, u32::from(spec.softcap.is_some()), u32::from(has_sinks)];
    let kernel = FAMILY.of_float("sdpa", q.dtype, Constants::starting::<1, 3>(options))?;
    let bytes = |simdgroups: u64| 4 * (u64::from(dim) + simdgroups * (u64::from(dim) + 34));
    let most = u64::from(limits.threadgroup_memory);
    let wanted = u64::from(keys.div_ceil(32).clamp(1, 8).min(limits.max_threads / 32));
    let fitting = (1..=wanted.max(1)).rev().find(|s| bytes(*s) <= most);
    let Some(simdgroups) = fitting else {
        let (kernel, what) = (kernel.function, "bytes of threadgroup memory");
        return Err(GpuError::Launch { kernel, what, found: bytes(1), most });
    };
    let (per_kv, softcap) = (heads / kv_heads.max(1) as u32, spec.softcap.unwrap_or(1.0));
    let params = SdpaParams { per_kv, queries, keys, dim, window, scale: spec.scale, softcap }.params();
    let launch = Launch {
        threadgroup_bytes: bytes(simdgroups).next_multiple_of(16) as u32,
        work: work([heads, queries, keys.min(window), dim, 2].map(|n| n as usize)),
        ..kernel.launch(params, [heads, queries, 1], [simdgroups as u32 * 32, 1, 1])
    };
    let sinks = if has_sinks { Slot::Input(3) } else { Slot::Unused };
    Ok(Stage::new(launch, [Slot::Input(0), Slot::Input(1), Slot::Input(2), sinks, Slot::Output]).into())
}

#[cfg(test)]
mod tests {
    use metallic_core::{DType, Shape};

    use super::super::harness::{Data, f32s, run};
    use super::super::typed::tests::{FLOATS, assert_near, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    /// Attention of `heads` over `kv_heads`, `queries` over `keys` of `dim`.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        dtype: DType,
        heads: (usize, usize),
        queries: usize,
        keys: usize,
        dim: usize,
        spec: Sdpa,
        sinks: Option<f32>,
        /// Factor on the queries.
        strength: f32,
    }

    const PLAIN: Case = Case {
        dtype: DType::F32,
        heads: (2, 2),
        queries: 3,
        keys: 40,
        dim: 16,
        spec: Sdpa { scale: 0.25, mask: Mask::Full, softcap: None },
        sinks: None,
        strength: 1.0,
    };

    impl Case {
        fn types(&self) -> Vec<TensorType> {
            let ty =
                |dims: [usize; 3]| TensorType::new(self.dtype, Shape::new(&dims.map(Dim::Fixed)).unwrap());
            let kv = ty([self.heads.1, self.keys, self.dim]);
            let sinks = TensorType::f32(Shape::vector(self.heads.0));
            let all = [ty([self.heads.0, self.queries, self.dim]), kv, kv];
            all.into_iter().chain(self.sinks.map(|_| sinks)).collect()
        }

        /// Queries, keys, values and sinks, as their types hold them.
        fn numbers(&self) -> [Vec<f32>; 4] {
            let many = |heads: usize, rows: usize, size: f32| {
                let n = (heads * rows * self.dim) as u32;
                waves(n + 7, size)[7..].to_vec()
            };
            let q = many(self.heads.0, self.queries, 2.0 * self.strength);
            let kv = |size: f32| many(self.heads.1, self.keys, size);
            let sinks = self
                .sinks
                .map_or(Vec::new(), |top| (0..self.heads.0).map(|head| top - 1.5 * head as f32).collect());
            let [q, k, v] = [q, kv(1.3), kv(0.9)].map(|x| rounded(self.dtype, &x));
            [q, k, v, sinks]
        }

        /// The formula, in f64.
        fn expected(&self) -> Vec<f64> {
            let [q, k, v, sinks] = self.numbers();
            let (m, n, d) = (self.queries, self.keys, self.dim);
            let mut out = Vec::new();
            for (head, i) in (0..self.heads.0 * m).map(|row| (row / m, row % m)) {
                let group = head / (self.heads.0 / self.heads.1);
                let seen = self.spec.mask.visible(i, m, n);
                let score = |j: usize| {
                    let (q, k) = (&q[(head * m + i) * d..][..d], &k[(group * n + j) * d..][..d]);
                    let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    let score = dot * f64::from(self.spec.scale);
                    self.spec.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let scores: Vec<f64> = seen.clone().map(score).collect();
                let sink = sinks.get(head).map(|sink| f64::from(*sink));
                let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - top).exp()).sum();
                let value = |col: usize| -> f64 {
                    let terms = seen.clone().zip(&scores);
                    terms.map(|(j, s)| (s - top).exp() / sum * f64::from(v[(group * n + j) * d + col])).sum()
                };
                out.extend((0..d).map(value));
            }
            out
        }

        fn check(&self) {
            let stages = sdpa(&self.spec, &self.types(), &LIMITS).unwrap();
            let [q, k, v, sinks] = self.numbers();
            let sinks = if sinks.is_empty() { Data::Unused } else { f32s(&sinks) };
            let out = room(self.dtype, q.len());
            let args = [data(self.dtype, &q), data(self.dtype, &k), data(self.dtype, &v), sinks, out];
            let Some(found) = run(&stages.stages[0].launch, &args) else { return };
            let what = format!("{self:?}");
            assert_near(self.dtype, &floats(self.dtype, &found[4]), &self.expected(), 1e-5, &what);
        }
    }

    fn masked(mask: Mask, case: Case) -> Case {
        Case { spec: Sdpa { mask, ..case.spec }, ..case }
    }

    #[test]
    fn every_type_number_of_keys_and_size_of_head() {
        for dtype in FLOATS {
            for keys in [1, 2, 31, 32, 33, 257, 300] {
                Case { dtype, keys, ..PLAIN }.check();
            }
            for dim in [1, 3, 33, 64, 130] {
                Case { dtype, dim, ..PLAIN }.check();
            }
        }
    }

    #[test]
    fn queries_see_what_their_mask_shows_and_nothing_gives_zeros() {
        for mask in [Mask::Causal, Mask::Window(1), Mask::Window(5), Mask::Window(33), Mask::Window(1000)] {
            // A prompt, a chunk after a past, queries before the first key.
            for (queries, keys) in [(1, 40), (40, 40), (3, 70), (9, 4)] {
                masked(mask, Case { queries, keys, ..PLAIN }).check();
            }
        }
        let blind = masked(Mask::Causal, Case { queries: 5, keys: 2, sinks: Some(1.0), ..PLAIN });
        blind.check();
        assert!(blind.expected()[..3 * 16].iter().all(|x| *x == 0.0));
    }

    #[test]
    fn neighbouring_heads_share_keys_and_values() {
        for heads in [(6, 2), (4, 1), (5, 5)] {
            masked(Mask::Causal, Case { heads, ..PLAIN }).check();
        }
    }

    #[test]
    fn sinks_take_their_share_and_scores_are_capped() {
        for dtype in FLOATS {
            for sinks in [None, Some(2.0), Some(200.0), Some(-40.0)] {
                for softcap in [None, Some(0.7), Some(30.0)] {
                    let spec = Sdpa { softcap, ..PLAIN.spec };
                    Case { dtype, spec, sinks, ..PLAIN }.check();
                }
            }
        }
    }

    #[test]
    fn huge_scores_pick_one_value_and_tiny_ones_all_alike() {
        for strength in [1e-30, 1e6, 1e30] {
            masked(Mask::Causal, Case { strength, keys: 70, ..PLAIN }).check();
        }
    }

    #[test]
    fn shapes_that_no_kernel_takes_are_refused_by_name() {
        let refused = |case: Case| sdpa(&case.spec, &case.types(), &LIMITS).unwrap_err().to_string();
        let text = refused(Case { dtype: DType::U32, ..PLAIN });
        assert!(text.contains("U32"), "{text}");
        let text = refused(Case { dim: 5000, ..PLAIN });
        assert!(text.contains("threadgroup memory"), "{text}");
        let matrix = TensorType::f32(Shape::matrix(4, 4));
        let text = sdpa(&PLAIN.spec, &[matrix; 3], &LIMITS).unwrap_err().to_string();
        assert!(text.contains("rank 3"), "{text}");
    }
}

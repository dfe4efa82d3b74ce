//! Weights in the formats of their files: their numbering, shared with the MSL, and the decoders' text.

use metallic_core::DType;

use crate::error::GpuError;

/// Declares the numbers of the weight types once, for Rust and for the MSL, where `FOR_WEIGHT_TYPE(type, DO)` runs `DO(W)` with
/// the format of a number (`WeightQ4_K`). It belongs outside loops: on a GPU the number is a constant.
macro_rules! weight_types {
    ($($dtype:ident $name:ident $number:literal),+ $(,)?) => {
        /// The number kernels know a weight's type by.
        pub(crate) fn weight_type(op: &'static str, dtype: DType) -> Result<u32, GpuError> {
            match dtype {
                $(DType::$dtype => Ok($number),)+
                DType::I32 | DType::U32 | DType::U8 => Err(GpuError::unsupported(op, format!("weights of {dtype}"))),
            }
        }

        /// Every weight type.
        #[cfg(test)]
        pub(crate) const WEIGHT_TYPES: &[DType] = &[$(DType::$dtype),+];

        const FORMATS: &str = concat!(
            "#define FOR_WEIGHT_TYPE(type, DO) switch (type) {",
            $(" case ", $number, ": DO(Weight", stringify!($name), "); break;",)+
            " }\n",
        );
    };
}

weight_types! {
    F32 F32 0, F16 F16 1, BF16 BF16 2,
    Q4_0 Q4_0 3, Q4_1 Q4_1 4, Q5_0 Q5_0 5, Q5_1 Q5_1 6, Q8_0 Q8_0 7,
    Q2K Q2_K 8, Q3K Q3_K 9, Q4K Q4_K 10, Q5K Q5_K 11, Q6K Q6_K 12,
    IQ4NL IQ4_NL 13, IQ4XS IQ4_XS 14, MXFP4 MXFP4 15,
}

/// The formats by the numbers of their types; goes before [`QUANT`].
pub(crate) const QUANT_TYPES: (&str, &str) = ("quant_types.metal", FORMATS);
/// The decoders of all weight types.
pub(crate) const QUANT: (&str, &str) = ("quant.metal", include_str!("quant.metal"));

/// Bytes of a row of a weight; an error where `cols` do not fill blocks.
pub(crate) fn row_bytes(op: &'static str, dtype: DType, cols: u32) -> Result<usize, GpuError> {
    let reason = || format!("rows of {cols} elements of {dtype}, whose blocks have {}", dtype.block_len());
    dtype.bytes_for(cols as usize).ok_or_else(|| GpuError::unsupported(op, reason()))
}

#[cfg(test)]
pub(crate) mod tests {
    use metallic_core::quant::{dequantize, quantize};

    use super::super::harness::{Data, as_f32s, run};
    use super::super::{Arg, COMMON, Constants, Family, Kernel, Launch, reads, writes};
    use super::*;
    use crate::gpu::Limits;
    use crate::params::kernel_params;
    use crate::threadgroup;
    use crate::threadgroup::tests::LIMITS;

    kernel_params! {
        /// Rows of `cols` elements.
        DecodeParams { cols: u32 }
    }

    const FAMILY: Family = Family {
        name: "decode",
        params: &[DecodeParams::MSL],
        uses: &[COMMON, QUANT_TYPES, QUANT],
        text: include_str!("harness/decode.metal"),
        kernels: &[&[("decode_rows", ARGS)]],
    };

    const ARGS: &[Arg] = &[reads("w", 2), writes("out", 4)];

    /// Rows of a weight as `F32`: `(w [rows, cols]) -> out [rows, cols]`.
    fn decode_rows(dtype: DType, (rows, cols): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
        let constants = Constants::of([weight_type("decode", dtype)?]);
        row_bytes("decode", dtype, cols)?;
        let (groups, threads) = threadgroup::linear(cols.div_ceil(8), limits);
        Ok(Launch {
            kernel: Kernel { family: &FAMILY, function: "decode_rows", constants, args: ARGS },
            params: DecodeParams { cols }.params(),
            groups: [groups, rows, 1],
            threads: [threads, 1, 1],
            threadgroup_bytes: 0,
            work: 0,
            bytewise: false,
        })
    }

    /// A stream of numbers that look random.
    pub(crate) struct Numbers(pub(crate) u64);

    impl Numbers {
        pub(crate) fn next(&mut self) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as u32
        }

        /// From -1 to 1.
        pub(crate) fn unit(&mut self) -> f32 {
            self.next() as f32 / (1u32 << 30) as f32 - 1.0
        }

        pub(crate) fn units(&mut self, n: usize) -> Vec<f32> {
            (0..n).map(|_| self.unit()).collect()
        }
    }

    /// Where the halves of a block lie that are numbers and no levels.
    fn halves(dtype: DType) -> &'static [usize] {
        match dtype {
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4NL | DType::IQ4XS => &[0],
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q2K => &[80, 82],
            DType::Q3K => &[108],
            DType::Q6K => &[208],
            _ => &[],
        }
    }

    /// Elements of a weight, all bits in use: numbers around `size` in plain types and in scales, any levels.
    pub(crate) fn weights(dtype: DType, elements: usize, size: f32, seed: u64) -> Vec<u8> {
        let mut numbers = Numbers(seed);
        let mut bytes = vec![0; dtype.bytes_for(elements).unwrap()];
        if !dtype.is_quantized() {
            let values: Vec<f32> = (0..elements).map(|_| numbers.unit() * size).collect();
            quantize(dtype, &values, &mut bytes).unwrap();
            return bytes;
        }
        for byte in &mut bytes {
            *byte = numbers.next() as u8;
        }
        let levels = if dtype.block_len() == 256 { 256.0 } else { 16.0 };
        for block in bytes.chunks_mut(dtype.block_bytes()) {
            for at in halves(dtype) {
                quantize(DType::F16, &[numbers.unit() * size / levels], &mut block[*at..at + 2]).unwrap();
            }
            if dtype == DType::MXFP4 {
                block[0] = 120 + block[0] % 8;
            }
        }
        bytes
    }

    pub(crate) fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
        dequantize(dtype, bytes, &mut out).unwrap();
        out
    }

    #[test]
    fn every_type_decodes_to_the_same_bits_as_the_reference() {
        let rows = |dtype: &'static DType| {
            let lengths: &[usize] = if dtype.is_quantized() { &[512] } else { &[75, 13, 15] };
            lengths.iter().map(move |cols| (dtype, *cols))
        };
        for (dtype, cols) in WEIGHT_TYPES.iter().flat_map(rows) {
            let bytes = weights(*dtype, 3 * cols, 4.0, 7);
            let launch = decode_rows(*dtype, (3, cols as u32), &LIMITS).unwrap();
            let Some(found) = run(&launch, &[Data::Bytes(bytes.clone()), Data::Room(12 * cols)]) else {
                return;
            };
            let expected = decoded(*dtype, &bytes);
            for (i, (found, expected)) in as_f32s(&found[1]).iter().zip(&expected).enumerate() {
                assert_eq!(found.to_bits(), expected.to_bits(), "{dtype} {i}: {found}, needed {expected}");
            }
        }
    }

    #[test]
    fn integers_and_begun_blocks_are_refused_by_name() {
        let error = decode_rows(DType::I32, (1, 32), &LIMITS).unwrap_err();
        assert!(error.to_string().contains("I32"), "{error}");
        let error = decode_rows(DType::Q4K, (1, 32), &LIMITS).unwrap_err();
        assert!(error.to_string().contains("Q4_K") && error.to_string().contains("256"), "{error}");
    }
}

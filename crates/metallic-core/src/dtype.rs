//! Element types, the quantised GGUF formats among them.

use std::fmt;

/// What one type is: its name, its id in GGUF files, elements and bytes of a block.
struct Layout {
    dtype: DType,
    name: &'static str,
    ggml_id: Option<u32>,
    block_len: usize,
    block_bytes: usize,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $dtype:ident = $name:literal, $id:expr, $len:literal in $bytes:literal bytes;)*) => {
        /// The element type of a tensor. A quantised format is a dtype with a block layout.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $($(#[$doc])* $dtype,)*
        }

        /// In the order of the declaration.
        const LAYOUTS: &[Layout] = &[$(
            Layout { dtype: DType::$dtype, name: $name, ggml_id: $id, block_len: $len, block_bytes: $bytes },
        )*];
    };
}

dtypes! {
    /// IEEE single precision.
    F32 = "F32", Some(0), 1 in 4 bytes;
    /// IEEE half precision.
    F16 = "F16", Some(1), 1 in 2 bytes;
    /// The upper half of an `F32`.
    BF16 = "BF16", Some(30), 1 in 2 bytes;
    /// Signed 32-bit integer.
    I32 = "I32", Some(26), 1 in 4 bytes;
    /// Unsigned 32-bit integer.
    U32 = "U32", None, 1 in 4 bytes;
    /// A byte: what formats of others are packed in.
    U8 = "U8", None, 1 in 1 bytes;
    /// 32 × 4 bit: `d * (q - 8)`.
    Q4_0 = "Q4_0", Some(2), 32 in 18 bytes;
    /// 32 × 4 bit: `d * q + m`.
    Q4_1 = "Q4_1", Some(3), 32 in 20 bytes;
    /// 32 × 5 bit: `d * (q - 16)`.
    Q5_0 = "Q5_0", Some(6), 32 in 22 bytes;
    /// 32 × 5 bit: `d * q + m`.
    Q5_1 = "Q5_1", Some(7), 32 in 24 bytes;
    /// 32 × 8 bit: `d * q`.
    Q8_0 = "Q8_0", Some(8), 32 in 34 bytes;
    /// 256 × 2 bit in 16 sub-blocks of 16: `d * sc * q - dmin * m`.
    Q2K = "Q2_K", Some(10), 256 in 84 bytes;
    /// 256 × 3 bit in 16 sub-blocks of 16: `d * (sc - 32) * (q - 4)`.
    Q3K = "Q3_K", Some(11), 256 in 110 bytes;
    /// 256 × 4 bit in 8 sub-blocks of 32: `d * sc * q - dmin * m`.
    Q4K = "Q4_K", Some(12), 256 in 144 bytes;
    /// 256 × 5 bit in 8 sub-blocks of 32: `d * sc * q - dmin * m`.
    Q5K = "Q5_K", Some(13), 256 in 176 bytes;
    /// 256 × 6 bit in 16 sub-blocks of 16: `d * sc * (q - 32)`.
    Q6K = "Q6_K", Some(14), 256 in 210 bytes;
    /// 32 × 4 bit: `d * level[q]`, see [`crate::quant::IQ4_LEVELS`].
    IQ4NL = "IQ4_NL", Some(20), 32 in 18 bytes;
    /// 256 × 4 bit in 8 sub-blocks of 32: `d * (sc - 32) * level[q]`.
    IQ4XS = "IQ4_XS", Some(23), 256 in 136 bytes;
    /// 32 × 4 bit: `2^(e - 128) * level[q]`, see [`crate::quant::MXFP4_LEVELS`].
    MXFP4 = "MXFP4", Some(39), 32 in 17 bytes;
}

/// Names of the ggml types this engine does not run, so that a refusal can name what it found.
const UNSUPPORTED: [(u32, &str); 16] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
];

/// A type id found in a file that names no dtype of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("type {name} (id {id}) is not supported; supported are {}", supported())]
pub struct UnknownDType {
    /// The id as found.
    pub id: u32,
    /// Its name, where it is a known ggml type.
    pub name: &'static str,
}

fn supported() -> String {
    let names: Vec<_> = LAYOUTS.iter().filter(|l| l.ggml_id.is_some()).map(|l| l.name).collect();
    names.join(", ")
}

impl DType {
    /// Every dtype, in the order of the declaration.
    pub fn all() -> impl Iterator<Item = DType> {
        LAYOUTS.iter().map(|l| l.dtype)
    }

    fn layout(self) -> &'static Layout {
        &LAYOUTS[self as usize]
    }

    /// The name users know: `F16`, `Q4_K`.
    pub fn name(self) -> &'static str {
        self.layout().name
    }

    /// Elements in a block; 1 for plain types.
    pub fn block_len(self) -> usize {
        self.layout().block_len
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.layout().block_bytes
    }

    /// Whether elements come in blocks with scales.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether elements are floating-point numbers of their own.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Bytes of `elements` elements in a row; `None` where they do not fill blocks or overflow.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        let whole = elements.is_multiple_of(self.block_len());
        (elements / self.block_len()).checked_mul(self.block_bytes()).filter(|_| whole)
    }

    /// The id of this type in GGUF files, where it has one.
    pub fn ggml_id(self) -> Option<u32> {
        self.layout().ggml_id
    }

    /// The dtype with this id in GGUF files.
    pub fn from_ggml(id: u32) -> Result<DType, UnknownDType> {
        let name = || UNSUPPORTED.iter().find(|(i, _)| *i == id).map_or("unknown", |(_, n)| *n);
        let known = LAYOUTS.iter().find(|l| l.ggml_id == Some(id));
        known.map(|l| l.dtype).ok_or_else(|| UnknownDType { id, name: name() })
    }

    /// The dtype with this name, in either case: `q4_k`, `F16`.
    pub fn from_name(name: &str) -> Option<DType> {
        LAYOUTS.iter().find(|l| l.name.eq_ignore_ascii_case(name)).map(|l| l.dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_table_is_in_declaration_order() {
        for (i, layout) in LAYOUTS.iter().enumerate() {
            assert_eq!(layout.dtype as usize, i);
        }
    }

    #[test]
    fn ids_and_names_round_trip() {
        for dtype in DType::all() {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            if let Some(id) = dtype.ggml_id() {
                assert_eq!(DType::from_ggml(id), Ok(dtype));
            }
        }
    }

    #[test]
    fn an_unknown_type_is_named() {
        let error = DType::from_ggml(21).unwrap_err();
        assert!(error.to_string().contains("IQ3_S (id 21)"), "{error}");
        assert_eq!(DType::from_ggml(9999).unwrap_err().name, "unknown");
    }

    #[test]
    fn partial_blocks_and_overflow_have_no_size() {
        assert_eq!(DType::Q4K.bytes_for(512), Some(288));
        assert_eq!(DType::Q4K.bytes_for(16), None);
        assert_eq!(DType::F32.bytes_for(usize::MAX), None);
    }
}

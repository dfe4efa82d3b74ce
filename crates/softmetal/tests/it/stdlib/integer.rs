//! Integer functions of every width, scalars and vectors.

use super::support::{Bytes, Random, bytes, compile, numbers, run};

/// Name, arguments, reference over wide integers with the width and signedness of the type.
type Case = (&'static str, usize, fn(&[i128], Width) -> i128);

#[derive(Clone, Copy)]
struct Width {
    bits: u32,
    signed: bool,
}

impl Width {
    fn min(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn max(self) -> i128 {
        if self.signed { (1 << (self.bits - 1)) - 1 } else { (1 << self.bits) - 1 }
    }

    fn saturate(self, x: i128) -> i128 {
        x.clamp(self.min(), self.max())
    }

    fn unsigned(self, x: i128) -> i128 {
        x & ((1 << self.bits) - 1)
    }

    /// The upper half of a product.
    fn high(self, x: i128, y: i128) -> i128 {
        if self.signed { (x * y) >> self.bits } else { ((x as u128 * y as u128) >> self.bits) as i128 }
    }

    fn wrap(self, x: i128) -> i128 {
        let x = self.unsigned(x);
        if self.signed && x >> (self.bits - 1) & 1 == 1 { x - (1 << self.bits) } else { x }
    }
}

const CASES: &[Case] = &[
    ("abs", 1, |x, _| x[0].abs()),
    ("absdiff", 2, |x, _| (x[0] - x[1]).abs()),
    ("addsat", 2, |x, w| w.saturate(x[0] + x[1])),
    ("subsat", 2, |x, w| w.saturate(x[0] - x[1])),
    ("clz", 1, |x, w| i128::from(w.unsigned(x[0]).leading_zeros() - (128 - w.bits))),
    ("ctz", 1, |x, w| if x[0] == 0 { w.bits.into() } else { w.unsigned(x[0]).trailing_zeros().into() }),
    ("popcount", 1, |x, w| w.unsigned(x[0]).count_ones().into()),
    ("reverse_bits", 1, |x, w| (w.unsigned(x[0]).reverse_bits() as u128 >> (128 - w.bits)) as i128),
    ("rotate", 2, |x, w| {
        let (value, by) = (w.unsigned(x[0]), w.unsigned(x[1]) % i128::from(w.bits));
        value << by | value >> (i128::from(w.bits) - by)
    }),
    ("hadd", 2, |x, _| (x[0] + x[1]) >> 1),
    ("rhadd", 2, |x, _| (x[0] + x[1] + 1) >> 1),
    ("mulhi", 2, |x, w| w.high(x[0], x[1])),
    ("madhi", 3, |x, w| w.high(x[0], x[1]) + x[2]),
    ("madsat", 3, |x, w| match x[0].checked_mul(x[1]).and_then(|p| p.checked_add(x[2])) {
        Some(sum) => w.saturate(sum),
        None => w.max(),
    }),
    ("max", 2, |x, _| x[0].max(x[1])),
    ("min", 2, |x, _| x[0].min(x[1])),
    ("max3", 3, |x, _| x[0].max(x[1]).max(x[2])),
    ("min3", 3, |x, _| x[0].min(x[1]).min(x[2])),
    ("median3", 3, |x, _| x[0].min(x[1]).max(x[0].max(x[1]).min(x[2]))),
    ("clamp", 3, |x, _| x[0].clamp(x[1].min(x[2]), x[1].max(x[2]))),
    ("extract_bits", 1, |x, w| {
        let field = x[0] >> 2 & 31;
        if w.signed && field > 15 { field - 32 } else { field }
    }),
    ("insert_bits", 2, |x, w| (w.unsigned(x[0]) & !(31 << 2)) | (x[1] & 31) << 2),
];

const N: usize = 256;

/// A kernel for a type: function after function, N results each; then whether vectors agree.
pub(crate) fn kernel(t: &str) -> String {
    let mut body = String::new();
    for (number, (name, arity, _)) in CASES.iter().enumerate() {
        let call = |x: [&str; 3]| match *name {
            "extract_bits" => format!("{name}({}, 2, 5)", x[0]),
            "insert_bits" => format!("{name}({}, {}, 2, 5)", x[0], x[1]),
            "clamp" => format!("{name}({0}, min({1}, {2}), max({1}, {2}))", x[0], x[1], x[2]),
            _ => format!("{name}({})", x[..*arity].join(", ")),
        };
        let place = number * N;
        body += &format!("o[{place} + i] = {};\n", call(["a", "b", "c"]));
        body += &format!("{{ {t}3 r = {}; ok = ok && r.x == o[{place} + i]", call(["va", "vb", "vc"]));
        body += &format!(" && r.y == {} && r.z == r.x; }}\n", call(["b", "c", "a"]));
    }
    format!(
        "kernel void t_{t}(device const {t}* x [[buffer(0)]], device {t}* o [[buffer(1)]], device uint* agree [[buffer(2)]],\n\
         uint i [[thread_position_in_grid]]) {{ {t} a = x[i * 3], b = x[i * 3 + 1], c = x[i * 3 + 2];\n\
         {t}3 va = {t}3(a, b, a), vb = {t}3(b, c, b), vc = {t}3(c, a, c); bool ok = true;\n{body} agree[i] = ok; }}\n"
    )
}

const TYPES: [&str; 8] = ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"];

pub(crate) fn source() -> String {
    let head = "#include <metal_stdlib>\nusing namespace metal;\n\
        kernel void of_24_bits(device const int* x [[buffer(0)]], device int* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {\n\
        int a = x[i * 3], b = x[i * 3 + 1], c = x[i * 3 + 2];\n\
        o[i * 4] = mul24(a, b); o[i * 4 + 1] = mad24(a, b, c); o[i * 4 + 2] = int(mul24(uint(a), uint(b)));\n\
        o[i * 4 + 3] = mad24(uint2(a, b), uint2(b, a), uint2(c, c)).x; }\n";
    TYPES.iter().fold(head.to_owned(), |text, t| text + &kernel(t))
}

fn check<T: Bytes + TryFrom<i128> + Into<i128>>(library: &softmetal::Library, t: &str)
where
    T::Error: std::fmt::Debug,
{
    let width = Width { bits: T::SIZE as u32 * 8, signed: !t.starts_with('u') };
    let mut random = Random(u64::from(width.bits) * 2 + u64::from(width.signed));
    let edges = [width.min(), width.max(), 0, 1, width.min() + 1, width.max() - 1, width.wrap(-1)];
    let values: Vec<i128> = (0..N * 3)
        .map(|i| {
            if i < 343 {
                edges[[i / 49, i / 7 % 7, i % 7][i % 3]]
            } else {
                width.wrap(i128::from(random.bits()))
            }
        })
        .collect();
    let input: Vec<T> = values.iter().map(|&x| T::try_from(x).unwrap()).collect();
    let results =
        run(library, &format!("t_{t}"), N as u32, &[bytes(&input)], &[CASES.len() * N * T::SIZE, N * 4]);
    let found = numbers::<T>(&results[0]);
    for (number, (name, arity, reference)) in CASES.iter().enumerate() {
        for i in 0..N {
            let x = &values[i * 3..i * 3 + 3];
            let found: i128 = found[number * N + i].into();
            assert_eq!(found, width.wrap(reference(x, width)), "{name}({:?}) of {t}", &x[..*arity]);
        }
    }
    assert!(numbers::<u32>(&results[1]).iter().all(|&ok| ok == 1), "vectors of {t} differ from scalars");
}

#[test]
fn integer_functions_are_those_of_wide_arithmetic() {
    let Some(library) = compile("integer", &source()) else { return };
    check::<i8>(&library, "char");
    check::<u8>(&library, "uchar");
    check::<i16>(&library, "short");
    check::<u16>(&library, "ushort");
    check::<i32>(&library, "int");
    check::<u32>(&library, "uint");
    check::<i64>(&library, "long");
    check::<u64>(&library, "ulong");
}

#[test]
fn products_of_24_bits_ignore_the_rest() {
    let Some(library) = compile("integer", &source()) else { return };
    let mut random = Random(24);
    let x: Vec<i32> = (0..192).map(|_| random.bits() as i32).collect();
    let found = numbers::<i32>(&run(&library, "of_24_bits", 64, &[bytes(&x)], &[64 * 16])[0]);
    for (x, found) in x.chunks(3).zip(found.chunks(4)) {
        let signed = (x[0] << 8 >> 8).wrapping_mul(x[1] << 8 >> 8);
        let unsigned = (x[0] & 0xff_ffff).wrapping_mul(x[1] & 0xff_ffff);
        assert_eq!(
            found,
            [signed, signed.wrapping_add(x[2]), unsigned, unsigned.wrapping_add(x[2])],
            "{x:?}"
        );
    }
}

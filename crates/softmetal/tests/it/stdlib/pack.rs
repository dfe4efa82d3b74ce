//! Packing into integers and back.

use super::support::{HALF, Random, bytes, close, compile, numbers, run};

/// Name of the format, components, bits of each from the lowest on, signed, sRGB.
const FORMATS: &[(&str, &[u32], bool, bool)] = &[
    ("unorm4x8", &[8, 8, 8, 8], false, false),
    ("snorm4x8", &[8, 8, 8, 8], true, false),
    ("srgb_unorm4x8", &[8, 8, 8, 8], false, true),
    ("unorm2x16", &[16, 16], false, false),
    ("snorm2x16", &[16, 16], true, false),
    ("unorm10a2", &[10, 10, 10, 2], false, false),
    ("unorm565", &[5, 6, 5], false, false),
];

/// The specification calls the unpacking side of sRGB otherwise.
fn unpacked(name: &str) -> &str {
    if name == "srgb_unorm4x8" { "unorm4x8_srgb" } else { name }
}

pub(crate) fn source() -> String {
    let mut text = "#include <metal_stdlib>\nusing namespace metal;\n".to_owned();
    for (name, bits, ..) in FORMATS {
        let (n, back) = (bits.len(), unpacked(name));
        let stored: String =
            (0..n).map(|c| format!("f[i * 4 + {c}] = v[{c}]; h[i * 4 + {c}] = w[{c}]; ")).collect();
        text += &format!(
            "kernel void t_{name}(device const uint* x [[buffer(0)]], device const float4* y [[buffer(1)]], device float* f [[buffer(2)]],\n\
             device half* h [[buffer(3)]], device uint* p [[buffer(4)]], uint i [[thread_position_in_grid]]) {{\n\
             float{n} v = unpack_{back}_to_float(x[i]); half{n} w = unpack_{back}_to_half(x[i]); {stored}\n\
             float4 s = y[i]; float{n} c = float{n}({});\n\
             p[i * 3] = pack_float_to_{name}(v); p[i * 3 + 1] = pack_float_to_{name}(c); p[i * 3 + 2] = pack_half_to_{name}(half{n}(c)); }}\n",
            ["s.x", "s.y", "s.z", "s.w"][..n].join(", "),
        );
    }
    text
}

#[test]
fn packed_values_come_back_and_others_go_to_the_nearest() {
    let Some(library) = compile("pack", &source()) else { return };
    let mut random = Random(6);
    let x: Vec<u32> = (0..256).map(|_| random.bits() as u32).collect();
    let y: Vec<f32> = (0..1024).map(|_| random.between(-1.5, 1.5)).collect();
    for &(name, bits, signed, srgb) in FORMATS {
        let total: u32 = bits.iter().sum();
        let mask = if total == 32 { u32::MAX } else { (1 << total) - 1 };
        let x: Vec<u32> = x.iter().map(|x| x & mask).collect();
        let results = run(&library, &format!("t_{name}"), 256, &[bytes(&x), bytes(&y)], &[4096, 2048, 3072]);
        let (floats, halves) = (numbers::<f32>(&results[0]), numbers::<u16>(&results[1]));
        let packed = numbers::<u32>(&results[2]);
        // 565 has its first component on top.
        let shifts: Vec<u32> = match name {
            "unorm565" => vec![11, 5, 0],
            _ => (0..bits.len()).map(|c| bits[..c].iter().sum()).collect(),
        };
        for i in 0..256 {
            let mut again = 0u32;
            for (c, (&bits, &shift)) in bits.iter().zip(&shifts).enumerate() {
                let field = x[i] >> shift & ((1 << bits) - 1);
                let top = f64::from((1u32 << (bits - u32::from(signed))) - 1);
                let plain = if signed {
                    f64::from((field << (32 - bits)) as i32 >> (32 - bits)).max(-top)
                } else {
                    field.into()
                } / top;
                let colour = srgb && c < 3;
                let wanted = match colour {
                    true if plain <= 0.04045 => plain / 12.92,
                    true => ((plain + 0.055) / 1.055).powf(2.4),
                    false => plain,
                };
                assert!(close(floats[i * 4 + c].into(), wanted, 2e-6), "unpack {name} {:#x} [{c}]", x[i]);
                let half = HALF.decode(halves[i * 4 + c].into());
                assert!(close(half, wanted, HALF.ulp(wanted)), "unpack {name} {:#x} [{c}] to half", x[i]);
                // The most negative pattern unpacks to -1, which packs one higher.
                let kept = if signed && field == 1 << (bits - 1) { field + 1 } else { field };
                again |= kept << shift;

                let value = f64::from(y[i * 4 + c]).clamp(if signed { -1.0 } else { 0.0 }, 1.0);
                let encoded = match colour {
                    true if value <= 0.003_130_8 => 12.92 * value,
                    true => 1.055 * value.powf(1.0 / 2.4) - 0.055,
                    false => value,
                };
                for (k, slack) in [(1, 0.501), (2, 0.501 + top / 2048.0)] {
                    let field = packed[i * 3 + k] >> shift & ((1 << bits) - 1);
                    let found = if signed {
                        f64::from((field << (32 - bits)) as i32 >> (32 - bits))
                    } else {
                        field.into()
                    };
                    assert!((found - encoded * top).abs() <= slack, "pack {name} of {value} [{c}]: {found}");
                }
            }
            assert_eq!(packed[i * 3], again, "{name} of {:#x} and back", x[i]);
        }
    }
}

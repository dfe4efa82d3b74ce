//! Operations on rows: element by element, picked, normed, rotated.

use metallic_core::{Binary, DType, Op, Rope, RopePairs, Unary, Var};

use super::{FLOATS, Table, VOCAB};

pub(super) const UNARY: [Unary; 7] =
    [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid, Unary::Exp, Unary::Softplus];
pub(super) const BINARY: [Binary; 6] =
    [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max];

/// A function of a few operations in `F32`, each off by a few units.
const FUNCTION: f32 = 3e-6;

/// A sigmoid is never near zero, so it may divide; its own error is in the quotient.
fn second(f: Binary, b: Var<'_>) -> Var<'_> {
    if f == Binary::Div { b.unary(Unary::Sigmoid) } else { b }
}

pub(super) fn elements(t: &mut Table) {
    for f in UNARY {
        let scale = if f == Unary::Exp { 1.0 } else { 4.0 };
        t.case(format!("{f:?}"), FUNCTION, move |m| m.rows(37).scale(scale).unary(f));
        t.case(format!("{f:?} of large numbers"), FUNCTION, move |m| {
            m.table(9, |i| if i % 9 == 0 { 1.0 } else { 1.7e4 * ((i % 8) as f32 - 3.5) }).unary(f)
        })
        .relative(FUNCTION);
        t.case(format!("gated by {f:?}"), 2.0 * FUNCTION, move |m| m.rows(33).gated(f, m.rows(33)));
    }
    // A quotient may be made of a reciprocal.
    let tolerance = |f: Binary| if f == Binary::Div { 1e-5 } else { 0.0 };
    for f in BINARY {
        t.case(format!("{f:?} of rows"), tolerance(f), move |m| {
            m.rows(33).then(Op::Binary(f), [second(f, m.rows(33))])
        });
        t.case(format!("{f:?} of all with one row"), tolerance(f), move |m| {
            m.rows(65).then(Op::Binary(f), [second(f, m.vector(65))])
        });
        for reversed in [false, true] {
            let op = Op::Scalar { op: f, value: -0.75, reversed };
            t.case(format!("{f:?} of a number, reversed {reversed}"), tolerance(f), move |m| {
                // Away from zero.
                m.table(31, |i| ((i % 13) as f32 - 6.5) * 0.3).then(op, [])
            });
        }
    }
    t.case("add to itself", 0.0, |m| {
        let x = m.rows(18);
        x + x
    });
    t.case("softcap", 1e-5, |m| m.rows(31).scale(20.0).softcap(7.0));
    t.case("add of one number alone", 0.0, |m| m.values(&[], |_| 1.5).scalar(Binary::Add, 2.0)).alone();
    t.case("add of four axes", 0.0, |m| {
        m.tensor(DType::F32, &[2, 3, 5, 7], 1.0) + m.tensor(DType::F32, &[2, 3, 5, 7], 1.0)
    })
    .alone();
    t.case("silu of nothing", 0.0, |m| m.values(&[0, 4], |_| 1.0).unary(Unary::Silu)).alone().zeros();
}

pub(super) fn picked(t: &mut Table) {
    for count in [1, 3] {
        // As a model takes them: shares of adapters spread over their ranks, a factor on each token's numbers.
        t.case(format!("shares of {count} adapters"), 1e-5, move |m| {
            m.rows(8 * count)
                * m.g
                    .adapters(count)
                    .linear(m.values(&[8 * count, count], |i| f32::from(i % count == i / count / 8)))
        });
    }
    for dtype in DType::all().filter(|t| t.is_float() || t.is_quantized()) {
        let cols = if dtype.is_float() { 35 } else { 512 };
        t.case(format!("embed {dtype}"), 0.0, move |m| m.matrix(dtype, VOCAB, cols).embed(m.g.tokens()));
    }
    t.case("embed, several side by side", 0.0, |m| m.matrix(DType::F16, 7, 12).embed(m.scores(7).top_k(3)));
    t.case("select rows", 0.0, |m| m.rows(9).select_rows(m.g.output_rows()));
    for (start, len) in [(7, 21), (0, 40), (39, 1)] {
        t.case(format!("slice {start}..+{len}"), 0.0, move |m| m.rows(40).slice(start, len));
    }
    for (cols, k) in [(1, 1), (40, 7), (1025, 33)] {
        t.case(format!("gather {k} of {cols}"), 0.0, move |m| m.rows(cols).gather(m.scores(cols).top_k(k)));
    }
    t.case("gather of three axes", 0.0, |m| {
        m.tensor(DType::F32, &[2, 3, 9], 1.0).gather(m.ids(&[2, 3, 4], |i| i * 5 % 9))
    })
    .alone();
    // Too large and too small for a half; exactly between two of its numbers.
    let extremes = [1e30, -1e30, 1e-30, 65519.0, 65520.0, 1.000_488_3, 6e-8, f32::INFINITY, -0.0];
    for dtype in FLOATS {
        t.case(format!("cast {dtype}"), 0.0, move |m| m.rows(33).cast(*dtype).cast(DType::F32));
        t.case(format!("cast extremes {dtype}"), 0.0, move |m| {
            m.table(9, |i| extremes[i % 9]).cast(*dtype).cast(DType::F32)
        })
        .only(&[DType::F32]);
    }
}

pub(super) fn normed(t: &mut Table) {
    for cols in [1, 31, 64, 577, 1025, 5000] {
        t.case(format!("rms norm {cols}"), 1e-5, move |m| m.rows(cols).rms_norm(m.vector(cols), 1e-5));
        t.case(format!("layer norm {cols}"), 2e-5, move |m| {
            m.rows(cols).layer_norm(m.vector(cols), Some(m.vector(cols)), 1e-5)
        });
        t.case(format!("softmax {cols}"), 2e-6, move |m| m.rows(cols).scale(9.0).softmax());
    }
    for (cols, groups) in [(24, 3), (7, 7), (640, 5), (2, 1)] {
        t.case(format!("rms norm of {groups} groups of {cols}, one weight"), 1e-5, move |m| {
            m.rows(cols).rms_norm_groups(m.vector(cols / groups), 1e-5, groups)
        });
        t.case(format!("rms norm of {groups} groups of {cols}, weights for all"), 1e-5, move |m| {
            m.rows(cols).rms_norm_groups(m.vector(cols), 1e-5, groups)
        });
    }
    t.case("rms norm of huge values", 1e-5, |m| m.rows(48).scale(1e19).rms_norm(m.vector(48), 1e-5))
        .only(&[DType::F32, DType::BF16]);
    t.case("rms norm of tiny values", 1e-10, |m| m.rows(129).scale(1e-10).rms_norm(m.vector(129), 1e-5))
        .relative(1e-5)
        .only(&[DType::F32, DType::BF16]);
    for dtype in FLOATS {
        t.case(format!("rms norm by {dtype}"), 1e-5, move |m| {
            m.rows(96).rms_norm(m.tensor(*dtype, &[96], 1.0), 1e-6)
        });
    }
    t.case("layer norm without bias", 2e-5, |m| m.rows(77).layer_norm(m.vector(77), None, 1e-5));
    // Numbers around 1000 carry 6e-5 each.
    t.case("layer norm far from zero", 2e-3, |m| {
        m.table(257, |i| 1000.0 + (i % 17) as f32 * 0.25).layer_norm(m.vector(257), Some(m.vector(257)), 1e-5)
    })
    .exact(2e-3)
    .only(&[DType::F32]);
    t.case("softmax with rows that are masked out", 2e-6, |m| {
        m.table(
            33,
            |i| if i % 3 == 0 || i / 33 % 2 == 0 { f32::NEG_INFINITY } else { (i % 100) as f32 * 0.05 },
        )
        .softmax()
    });
    t.case("softmax of large numbers", 2e-6, |m| {
        m.table(40, |i| if i % 7 == 3 { 6e4 } else { -6e4 }).softmax()
    });
    t.case("softmax of nothing but masked rows", 0.0, |m| {
        m.values(&[2, 40], |_| f32::NEG_INFINITY).softmax()
    })
    .alone()
    .zeros();
    t.case("softmax of three axes", 2e-6, |m| m.tensor(DType::F32, &[2, 3, 257], 9.0).softmax()).alone();
    t.case("rms norm of no rows", 0.0, |m| m.values(&[0, 8], |_| 1.0).rms_norm(m.vector(8), 1e-5))
        .alone()
        .zeros();
}

pub(super) fn rotated(t: &mut Table) {
    for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
        for (heads, head_dim, rotated) in
            [(3, 24, 24), (3, 24, 10), (1, 2, 2), (5, 64, 64), (2, 9, 8), (2, 8, 0)]
        {
            let rope = Rope { head_dim, pairs, magnitude: 1.1 };
            t.case(format!("rope {pairs:?} {rotated} of {head_dim}"), 1e-5, move |m| {
                m.rows(heads * head_dim).rope(rope, m.g.positions(), m.freqs(rotated / 2, 0.9))
            });
        }
        // An angle of 2000 in f32 is off by 1.2e-4.
        let rope = Rope { head_dim: 64, pairs, magnitude: 1.0 };
        t.case(format!("rope {pairs:?} far along"), 4e-4, move |m| {
            m.tensor(DType::F32, &[7, 128], 1.5).rope(rope, m.ids(&[7], |i| i * 631 % 2001), m.freqs(32, 0.8))
        })
        .exact(4e-4)
        .alone();
    }
}

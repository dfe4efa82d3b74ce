//! Products with matrices of every weight type, plain and in the forms fusion makes of them.

use metallic_core::{DType, Unary};

use super::Table;

/// Every type a matrix may have, columns that suit it, and how far off products with it are where activations are rounded
/// to 8 bits: each by up to 1/254 of its block's largest value.
fn matrices() -> impl Iterator<Item = (DType, usize, f32)> {
    let numbers = DType::all().filter(|t| t.is_float() || t.is_quantized());
    numbers.map(|t| if t.is_float() { (t, 75, 5e-5) } else { (t, 512, 0.12) })
}

pub(super) fn linear(t: &mut Table) {
    t.case("linear of a weight", 1e-5, |m| m.vector(40).linear(m.matrix(DType::F32, 9, 40)));
    for (dtype, cols, tolerance) in matrices() {
        for rows in [1, 33] {
            t.case(format!("linear {dtype} {rows}"), tolerance, move |m| {
                m.rows(cols).linear(m.matrix(dtype, rows, cols))
            });
        }
        t.case(format!("norm, linear, bias {dtype}"), tolerance, move |m| {
            m.rows(cols).rms_norm(m.vector(cols), 1e-6).linear(m.matrix(dtype, 20, cols)) + m.vector(20)
        });
        t.case(format!("linear, bias, residual {dtype}"), tolerance, move |m| {
            m.rows(20) + (m.rows(cols).linear(m.matrix(dtype, 20, cols)) + m.vector(20))
        });
        // A gate multiplies two sums, each off by as much.
        t.case(format!("norm, gated linear {dtype}"), tolerance * 4.0, move |m| {
            let x = m.rows(cols).rms_norm(m.vector(cols), 1e-6);
            x.linear(m.matrix(dtype, 48, cols)).unary(Unary::Silu) * x.linear(m.matrix(dtype, 48, cols))
        });
    }
    t.case("linear, bias", 5e-5, |m| m.rows(75).linear(m.matrix(DType::F32, 20, 75)) + m.vector(20));
    t.case("linear, residual", 5e-5, |m| m.rows(20) + m.rows(75).linear(m.matrix(DType::F16, 20, 75)));
    for (rows, cols) in [(130, 64), (64, 1), (65, 1027), (257, 31)] {
        t.case(format!("linear F32 {rows} of {cols}"), 1e-4, move |m| {
            m.rows(cols).linear(m.matrix(DType::F32, rows, cols))
        });
    }
    for act in [Unary::Gelu, Unary::GeluTanh, Unary::Relu] {
        t.case(format!("linear gated by {act:?}, mixed types"), 0.12, move |m| {
            let x = m.rows(64);
            x.linear(m.matrix(DType::Q8_0, 40, 64)).unary(act) * x.linear(m.matrix(DType::F16, 40, 64))
        });
    }
    for (name, x, w) in [
        ("of two axes", &[66, 70][..], &[130, 70][..]),
        ("of one row", &[1, 257], &[130, 257]),
        ("of three axes with one matrix", &[3, 5, 33], &[19, 33]),
        ("batched", &[3, 7, 33], &[3, 19, 33]),
        ("batched twice", &[3, 2, 35, 33], &[3, 2, 19, 33]),
    ] {
        t.case(format!("linear {name}"), 1e-4, move |m| {
            m.tensor(DType::F32, x, 1.0).linear(m.tensor(DType::F32, w, 1.0))
        })
        .alone();
    }
    for (name, x, w) in [("over nothing", &[3, 0], &[5, 0]), ("of no rows", &[0, 4], &[5, 4])] {
        t.case(format!("linear {name}"), 0.0, move |m| m.values(x, |_| 1.0).linear(m.values(w, |_| 1.0)))
            .alone()
            .zeros();
    }
}

pub(super) fn experts(t: &mut Table) {
    for (dtype, k, tolerance) in matrices() {
        t.case(format!("experts {dtype}, one row for all choices"), tolerance, move |m| {
            m.rows(k).expert_linear(m.tensor(dtype, &[5, 20, k], 0.3), m.scores(5).top_k(2))
        });
        t.case(format!("experts {dtype}, a row for each choice"), tolerance, move |m| {
            m.rows(3 * k).expert_linear(m.tensor(dtype, &[4, 9, k], 0.3), m.scores(4).top_k(3))
        });
    }
    t.case("experts, one choice", 5e-5, |m| {
        m.rows(33).expert_linear(m.tensor(DType::F32, &[3, 65, 33], 0.3), m.scores(3).top_k(1))
    });
    for (n, choices) in [(20, 3), (1, 5), (257, 1), (64, 8)] {
        t.case(format!("combine {choices} of {n}"), 2e-6, move |m| {
            m.rows(n * choices).combine(m.rows(choices))
        });
    }
    // As models have it: the best experts, weighted by a softmax over them.
    t.case("mixture of experts", 2e-4, |m| {
        let (x, scores) = (m.rows(48), m.scores(6));
        let ids = scores.top_k(2);
        let [gate, up] = [0, 1].map(|_| x.expert_linear(m.tensor(DType::F32, &[6, 40, 48], 0.3), ids));
        let inner = gate.gated(Unary::Silu, up);
        inner
            .expert_linear(m.tensor(DType::F16, &[6, 48, 40], 0.3), ids)
            .combine(scores.gather(ids).softmax())
    });
}

//! Recurrent states.

use metallic_core::{DType, Recurrence, StateId, Unary, Var};

use super::attention::plain;
use super::{Maker, Table};

/// Keys are so short that the delta rule settles.
fn recur<'g>(m: &Maker<'g>, r: Recurrence) -> Var<'g> {
    let keys = r.key_heads * r.key_dim;
    let (q, k, v) =
        (m.rows(keys), m.rows(keys).scale(1.0 / (r.key_dim as f32).sqrt()), m.rows(r.heads * r.value_dim));
    let [decay, beta] = [0, 1].map(|_| m.rows(r.heads).unary(Unary::Sigmoid));
    q.recurrence([k, v, decay, beta], r)
}

pub(super) fn all(t: &mut Table) {
    for (cols, width) in [(24, 4), (65, 2), (1, 3), (33, 1)] {
        t.case(format!("short conv of {width} over {cols}"), 5e-6, move |m| {
            m.rows(cols).short_conv(m.tensor(DType::F32, &[cols, width], 1.0), StateId(0))
        });
    }
    t.case("short conv F16", 5e-6, |m| {
        m.rows(40).short_conv(m.tensor(DType::F16, &[40, 4], 1.0), StateId(1))
    });
    for delta in [false, true] {
        for (heads, key_heads, key_dim, value_dim) in
            [(3, 3, 8, 12), (2, 1, 32, 32), (1, 1, 1, 33), (4, 2, 64, 16)]
        {
            let tiled = heads == 4;
            let r = Recurrence { state: StateId(0), heads, key_heads, tiled, key_dim, value_dim, delta };
            let name =
                format!("recurrence {heads} by {key_heads} of {key_dim} and {value_dim}, delta {delta}");
            t.case(name, 1e-4, move |m| recur(m, r));
        }
    }
    // Two kinds of state, and keys and values beside them.
    t.case("recurrence after a convolution, then attention", 2e-4, |m| {
        let x = m.rows(32).short_conv(m.tensor(DType::F32, &[32, 4], 0.5), StateId(1)).unary(Unary::Silu);
        let r = Recurrence {
            state: StateId(3),
            heads: 2,
            key_heads: 2,
            tiled: false,
            key_dim: 16,
            value_dim: 16,
            delta: true,
        };
        let y = x + recur(m, r);
        y.attention(m.rows(16).kv_write(m.rows(16), StateId(0), 1), plain(2, 1, 16), None)
    });
}

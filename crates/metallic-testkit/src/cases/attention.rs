//! Attention: over what is kept, with everything before it, and over what is given.

use metallic_core::{Attention, DType, Mask, Op, Rope, RopePairs, Sdpa, StateId, Var};

use super::{Case, Maker, Table};

const STATE: StateId = StateId(0);

/// So many query heads on so many key/value heads, all of `head_dim`.
pub(super) fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Attention {
    Attention {
        state: STATE,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
        softcap: None,
        sinks: false,
    }
}

fn attend<'g>(m: &Maker<'g>, a: Attention) -> Var<'g> {
    let rope = Rope { head_dim: a.head_dim, pairs: RopePairs::Halves, magnitude: 1.0 };
    let freqs = m.values(&[a.head_dim / 2], |i| 1.0 / (1.0 + i as f32));
    let rotated = |heads: usize| m.rows(heads * a.head_dim).rope(rope, m.g.positions(), freqs);
    let stored = rotated(a.kv_heads).kv_write(m.rows(a.kv_heads * a.value_dim), a.state, a.kv_heads);
    rotated(a.heads).attention(stored, a, a.sinks.then(|| m.vector(a.heads)))
}

fn kept_as<'t>(t: &'t mut Table, name: &str, kv: DType, a: Attention) -> &'t mut Case {
    // The last bit of a stored key may differ, whatever the arithmetic.
    let tolerance = match kv {
        DType::F32 => 2e-5,
        DType::F16 | DType::BF16 => 2e-4,
        _ => 2e-3,
    };
    t.case(format!("attention {name} {kv}"), tolerance, move |m| attend(m, a)).kv(kv).exact(tolerance)
}

/// Keys and values are kept.
pub(super) fn kept(t: &mut Table) {
    for kv in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        kept_as(t, "grouped", kv, plain(6, 2, 64));
        kept_as(t, "with other values", kv, Attention { value_dim: 32, ..plain(4, 2, 64) });
    }
    kept_as(t, "with long values", DType::F32, Attention { value_dim: 48, ..plain(3, 1, 24) });
    kept_as(t, "odd heads", DType::F32, plain(3, 3, 26));
    kept_as(t, "one kv head", DType::F16, plain(5, 1, 80));
    kept_as(t, "large heads", DType::F16, plain(2, 1, 256));
    for window in [1, 5, 32, 33] {
        let a = Attention { window: Some(window), ..plain(4, 2, 32) };
        kept_as(t, &format!("window of {window}"), DType::F32, a);
    }
    kept_as(t, "capped", DType::F32, Attention { softcap: Some(3.0), ..plain(2, 2, 48) });
    let sinks = Attention { sinks: true, ..plain(4, 2, 32) };
    kept_as(t, "sinks", DType::F32, sinks);
    kept_as(t, "sinks, window of 5", DType::F16, Attention { window: Some(5), ..sinks });
    kept_as(
        t,
        "sinks, window, capped",
        DType::F32,
        Attention { window: Some(9), softcap: Some(2.0), ..sinks },
    );
    t.case("attention twice over one cache", 4e-5, |m| {
        let a = plain(4, 2, 32);
        let stored = m.rows(64).kv_write(m.rows(64), STATE, 2);
        let near = m.rows(128).attention(stored, Attention { window: Some(7), ..a }, None);
        near + m.rows(128).attention(stored, a, None)
    });
    t.case("attention in layers with a window and without", 8e-5, |m| {
        let a = plain(4, 2, 32);
        let near = |state, window| Attention { state: StateId(state), window: Some(window), ..a };
        attend(m, a) + attend(m, near(1, 7)) + attend(m, near(3, 40))
    });
    t.case("attention in two layers", 4e-5, |m| {
        let a = plain(4, 2, 32);
        let first = attend(m, a);
        first + attend(m, Attention { state: StateId(2), ..a })
    });
}

/// A layer's attention and the projection of its result, which a device may do at once.
pub(super) fn projected(t: &mut Table) {
    let windowed = Attention { window: Some(9), sinks: true, ..plain(4, 2, 32) };
    for (kv, dtype, a) in [
        (DType::F32, DType::F32, plain(6, 2, 16)),
        (DType::F16, DType::Q4_0, Attention { value_dim: 64, ..plain(4, 2, 32) }),
        (DType::Q8_0, DType::F16, windowed),
    ] {
        // A result is off by what all elements of attention's are.
        let exact = match kv {
            DType::F32 => 1e-4,
            DType::F16 => 5e-3,
            _ => 2e-2,
        };
        let rounded = if dtype.is_quantized() { 0.12 } else { exact };
        let cols = a.heads * a.value_dim;
        t.case(format!("attention, linear {dtype} {kv}"), rounded, move |m| {
            attend(m, a).linear(m.matrix(dtype, 33, cols))
        })
        .kv(kv)
        .exact(exact);
        t.case(format!("attention, linear, bias, residual {dtype} {kv}"), rounded, move |m| {
            m.rows(20) + (attend(m, a).linear(m.matrix(dtype, 20, cols)) + m.vector(20))
        })
        .kv(kv)
        .exact(exact);
    }
}

pub(super) fn long(t: &mut Table) {
    kept_as(t, "long, odd heads", DType::F32, plain(3, 1, 26));
    // Averages of a thousand values are small, and so is what they are off by.
    let capped = Attention { softcap: Some(2.0), ..plain(2, 1, 64) };
    kept_as(t, "long, one kv head", DType::F16, capped).exact(1e-4);
    let window = Attention { window: Some(1060), ..plain(2, 1, 32) };
    kept_as(t, "long, window", DType::Q8_0, window).exact(1e-4);
    kept_as(t, "long, sinks", DType::F32, Attention { sinks: true, ..plain(2, 1, 32) });
}

/// How the way into attention differs from case to case.
#[derive(Clone, Copy)]
struct Way {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    pairs: RopePairs,
    types: [DType; 3],
    norm: bool,
    head_norms: bool,
}

const WAY: Way = Way {
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    pairs: RopePairs::Halves,
    types: [DType::F32, DType::F16, DType::BF16],
    norm: true,
    head_norms: false,
};

fn qkv_as(t: &mut Table, name: &str, kv: DType, way: Way) {
    let Way { heads, kv_heads, head_dim, pairs, types, norm, head_norms } = way;
    let quantized = types.iter().any(|t| t.is_quantized());
    // A score moves by what all elements of a query and a key are off by.
    let exact = match kv {
        DType::F32 => 1e-4,
        DType::F16 => 2e-3,
        _ => 2e-2,
    };
    let tolerance = if quantized { 0.2 } else { exact };
    t.case(format!("qkv {name} {kv}"), tolerance, move |m| {
        let cols = if quantized { 256 } else { 75 };
        let rope = Rope { head_dim, pairs, magnitude: 1.1 };
        let freqs = m.freqs(head_dim / 2, 0.9);
        let x = if norm { m.rows(cols).rms_norm(m.vector(cols), 1e-6) } else { m.rows(cols) };
        let made = |heads: usize, dtype: DType| {
            x.linear(m.matrix(dtype, heads * head_dim, cols)) + m.vector(heads * head_dim)
        };
        let normed = |x, heads: usize| {
            if head_norms { Var::rms_norm_groups(x, m.vector(head_dim), 1e-6, heads) } else { x }
        };
        let (q, k, v) = (made(heads, types[0]), made(kv_heads, types[1]), made(kv_heads, types[2]));
        let [q, k] = [normed(q, heads), normed(k, kv_heads)].map(|x| x.rope(rope, m.g.positions(), freqs));
        let scale = if head_norms { 0.3 } else { 0.02 } / (head_dim as f32).sqrt();
        q.attention(
            k.kv_write(v, STATE, kv_heads),
            Attention { scale, ..plain(heads, kv_heads, head_dim) },
            None,
        )
    })
    .kv(kv)
    .exact(exact);
}

/// A layer's attention with everything before it, as models write it.
pub(super) fn qkv(t: &mut Table) {
    let interleaved = Way { heads: 3, kv_heads: 1, head_dim: 64, pairs: RopePairs::Interleaved, ..WAY };
    for kv in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        qkv_as(t, "halves", kv, WAY);
        qkv_as(t, "interleaved", kv, interleaved);
    }
    let mixed = [DType::Q4K, DType::Q8_0, DType::Q6K];
    qkv_as(t, "quantised", DType::F16, Way { types: mixed, ..WAY });
    let ragged = Way { head_dim: 26, ..interleaved };
    qkv_as(t, "ragged pairs", DType::F32, ragged);
    qkv_as(t, "ragged heads", DType::F32, Way { pairs: RopePairs::Halves, ..ragged });
    qkv_as(t, "without norm", DType::F32, Way { norm: false, ..WAY });
    qkv_as(t, "head norms", DType::F32, Way { head_norms: true, ..WAY });
    qkv_as(t, "head norms, interleaved", DType::F16, Way { head_norms: true, ..interleaved });
    qkv_as(t, "head norms alone", DType::F32, Way { head_norms: true, norm: false, ..WAY });
}

/// Heads, key/value heads, queries, keys, elements of a head.
type Heads = (usize, usize, usize, usize, usize);

fn given_as(t: &mut Table, (h, kv, m, n, d): Heads, sdpa: Sdpa, sinks: bool) -> &mut Case {
    let mut name = format!("sdpa {h}/{kv} heads of {d}, {m} on {n} {:?}", sdpa.mask);
    name += if sdpa.softcap.is_some() { ", capped" } else { "" };
    name += if sdpa.scale > 1.0 { ", sharp" } else { "" };
    name += if sinks { ", sinks" } else { "" };
    t.case(name, 5e-5, move |make| {
        let [q, k, v] =
            [(h, m), (kv, n), (kv, n)].map(|(heads, len)| make.tensor(DType::F32, &[heads, len, d], 1.5));
        let more = sinks.then(|| make.values(&[h], |i| i as f32 * 0.5 - 1.0));
        q.then(Op::Sdpa(sdpa), [k, v].into_iter().chain(more))
    })
    .alone()
}

/// Keys and values are given.
pub(super) fn given(t: &mut Table) {
    let plain = |d: usize, mask| Sdpa { scale: 1.0 / (d as f32).sqrt(), mask, softcap: None };
    for (heads, mask) in [
        ((1, 1, 1, 1, 32), Mask::Full),
        ((6, 2, 1, 33, 64), Mask::Causal),
        ((6, 2, 33, 33, 64), Mask::Causal),
        ((4, 4, 7, 130, 80), Mask::Causal),
        ((5, 1, 31, 257, 32), Mask::Full),
        ((2, 1, 40, 70, 128), Mask::Window(5)),
        ((2, 2, 33, 100, 32), Mask::Window(1)),
        ((2, 1, 5, 1025, 64), Mask::Window(600)),
        ((3, 3, 4, 20, 26), Mask::Causal),
        ((2, 1, 3, 9, 256), Mask::Causal),
        // The first 23 queries see no key.
        ((2, 1, 40, 17, 32), Mask::Causal),
        ((2, 1, 40, 17, 32), Mask::Window(3)),
    ] {
        given_as(t, heads, plain(heads.4, mask), false);
    }
    let capped = Sdpa { softcap: Some(3.0), ..plain(48, Mask::Causal) };
    given_as(t, (2, 2, 9, 35, 48), capped, false);
    given_as(t, (4, 2, 9, 35, 64), plain(64, Mask::Causal), true);
    given_as(t, (4, 1, 20, 9, 32), plain(32, Mask::Window(4)), true);
    // Scores so large that one key takes all: one of 1000 in f32 is off by 6e-5 for each of the sum's roundings.
    let sharp = Sdpa { scale: 30.0, ..plain(32, Mask::Causal) };
    given_as(t, (2, 1, 5, 33, 32), sharp, false).exact(2e-3);
    for (heads, mask) in [((2, 1, 3, 0, 32), Mask::Full), ((2, 1, 0, 5, 32), Mask::Causal)] {
        given_as(t, heads, plain(32, mask), false).zeros();
    }
    given_as(t, (2, 1, 3, 0, 32), plain(32, Mask::Causal), true).zeros();
}

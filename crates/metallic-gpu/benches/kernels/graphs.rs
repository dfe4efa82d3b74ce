//! The graphs that are timed: one kernel each, as nearly as a graph can be.

use metallic_core::{
    Attention, DType, Graph, GraphBuilder, Rope, RopePairs, Shape, StateId, TensorType, Unary, Var, Weight,
};

/// Rows of every embedding table.
pub(crate) const VOCAB: usize = 64;
/// Times a light operation stands in its chain.
const CHAIN: usize = 8;
/// Elements of a row, as of a small model.
const COLS: usize = 1024;

/// What one run has to do.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Bytes that must be read and written.
    Bytes(u64),
    /// Multiplications with additions.
    MultiplyAdds(u64),
}

/// One line of the table.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) graph: Graph,
    /// How keys and values are stored.
    pub(crate) kv: DType,
    /// Tokens of the step that is timed, and tokens in the cache before it.
    pub(crate) tokens: usize,
    pub(crate) past: usize,
    pub(crate) work: Work,
}

fn weight<'g>(g: &'g GraphBuilder, name: &str, dtype: DType, shape: Shape, len: usize) -> Var<'g> {
    // Small scales, and bits that differ from block to block.
    let mut bytes = vec![0u8; dtype.bytes_for(len).expect("whole blocks")];
    match dtype {
        DType::F32 => {
            for (i, at) in bytes.chunks_exact_mut(4).enumerate() {
                at.copy_from_slice(&((i as f32 * 0.37).sin() * 0.5).to_le_bytes());
            }
        }
        // As halves and as scales of blocks, 0x11 to 0x1f are small numbers of one sign.
        _ => bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = 0x11 + (i * 7 % 14) as u8),
    }
    g.weight(Weight { name: name.to_owned(), ty: TensorType::new(dtype, shape), data: bytes.into() })
}

fn rows<'g>(g: &'g GraphBuilder, name: &str, cols: usize) -> Var<'g> {
    weight(g, name, DType::F32, Shape::matrix(VOCAB, cols), VOCAB * cols).embed(g.tokens())
}

fn line(
    name: String,
    tokens: usize,
    work: Work,
    build: impl for<'g> Fn(&'g GraphBuilder) -> Var<'g>,
) -> Line {
    let g = GraphBuilder::new();
    let out = build(&g);
    let graph = g.finish(&[out]).unwrap_or_else(|error| panic!("{name}: {error}"));
    Line { name, graph, kv: DType::F16, tokens, past: 0, work }
}

/// A light operation, `CHAIN` times one after another; `reads` values are read for each written.
fn chain(name: &str, tokens: usize, reads: usize, op: impl for<'g> Fn(Var<'g>, Var<'g>) -> Var<'g>) -> Line {
    let bytes = CHAIN * (reads + 1) * tokens * COLS * size_of::<f32>();
    line(format!("{name}/f32/{tokens}x{COLS}"), tokens, Work::Bytes(bytes as u64), |g| {
        let other = weight(g, "other", DType::F32, Shape::vector(COLS), COLS);
        (0..CHAIN).fold(rows(g, "x", COLS), |x, _| op(x, other))
    })
}

/// `tokens` rows by a matrix: bytes of the weights for one token, multiply-adds for many.
fn product(dtype: DType, n: usize, tokens: usize) -> Line {
    let k = COLS;
    let bytes = dtype.bytes_for(n * k).expect("whole blocks") as u64;
    let (kind, work) = match tokens {
        1 => ("matvec", Work::Bytes(bytes)),
        _ => ("matmul", Work::MultiplyAdds((n * k * tokens) as u64)),
    };
    line(format!("{kind}/{dtype}/{n}x{k}/{tokens}"), tokens, work, move |g| {
        rows(g, "x", k).linear(weight(g, "w", dtype, Shape::matrix(n, k), n * k))
    })
}

/// A gated pair of matrices with the norm before it, as fusion makes them one operation.
fn gated(dtype: DType, n: usize) -> Line {
    let k = COLS;
    let bytes = 2 * dtype.bytes_for(n * k).expect("whole blocks") as u64;
    line(format!("gated_project/{dtype}/{n}x{k}/1"), 1, Work::Bytes(bytes), move |g| {
        let x = rows(g, "x", k).rms_norm(weight(g, "norm", DType::F32, Shape::vector(k), k), 1e-5);
        let matrix = |name| weight(g, name, dtype, Shape::matrix(n, k), n * k);
        x.linear(matrix("gate")).unary(Unary::Silu) * x.linear(matrix("up"))
    })
}

/// Bytes of one token's keys and values in one layer.
fn token_bytes(kv: DType, kv_heads: usize, head_dim: usize) -> usize {
    2 * kv.bytes_for(kv_heads * head_dim).expect("whole blocks")
}

/// Attention to all that the first layer keeps.
fn look(heads: usize, kv_heads: usize, head_dim: usize) -> Attention {
    let (state, scale) = (StateId(0), 1.0 / (head_dim as f32).sqrt());
    Attention {
        state,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        scale,
        window: None,
        softcap: None,
        sinks: false,
    }
}

/// Attention of 12 heads over 4 key/value heads: bytes of the cache for one token, multiply-adds for many.
pub(crate) fn attention(kv: DType, head_dim: usize, tokens: usize, past: usize) -> Line {
    let (heads, kv_heads) = (12, 4);
    let seen: usize = (past + 1..=past + tokens).sum();
    let work = match tokens {
        1 => Work::Bytes((token_bytes(kv, kv_heads, head_dim) * seen) as u64),
        _ => Work::MultiplyAdds((2 * heads * head_dim * seen) as u64),
    };
    let kind = if tokens == 1 { "decode" } else { "prefill" };
    let name = format!("attention_{kind}/{kv}/{heads}:{kv_heads}x{head_dim}/{tokens}@{past}");
    let mut line = line(name, tokens, work, move |g| {
        let rope = Rope { head_dim, pairs: RopePairs::Halves, magnitude: 1.0 };
        let freqs = weight(g, "freqs", DType::F32, Shape::vector(head_dim / 2), head_dim / 2);
        let keys = rows(g, "k", kv_heads * head_dim).rope(rope, g.positions(), freqs);
        let receipt = keys.kv_write(rows(g, "v", kv_heads * head_dim), StateId(0), kv_heads);
        rows(g, "q", heads * head_dim).attention(receipt, look(heads, kv_heads, head_dim), None)
    });
    line.kv = kv;
    line.past = past;
    line
}

/// Rotations of 16 heads, one after another.
fn rope() -> Line {
    let (tokens, head_dim) = (64, 64);
    let bytes = (CHAIN * 2 * tokens * COLS * size_of::<f32>()) as u64;
    line(format!("rope/f32/{tokens}x{COLS}"), tokens, Work::Bytes(bytes), move |g| {
        let freqs = weight(g, "freqs", DType::F32, Shape::vector(head_dim / 2), head_dim / 2);
        let spec = Rope { head_dim, pairs: RopePairs::Halves, magnitude: 1.0 };
        (0..CHAIN).fold(rows(g, "x", COLS), |x, _| x.rope(spec, g.positions(), freqs))
    })
}

/// The way into attention as fusion makes it one operation: norm, three matrices, rotation, cache. What is attended to is the
/// step's own tokens alone.
fn qkv(dtype: DType, tokens: usize) -> Line {
    let (heads, kv_heads, head_dim) = (12, 4, 64);
    let columns = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim];
    let elements = columns.iter().sum::<usize>() * COLS;
    let work = match tokens {
        1 => Work::Bytes(dtype.bytes_for(elements).expect("whole blocks") as u64),
        _ => Work::MultiplyAdds((elements * tokens) as u64),
    };
    let name = format!("qkv/{dtype}/{heads}:{kv_heads}x{head_dim}x{COLS}/{tokens}");
    line(name, tokens, work, move |g| {
        let x = rows(g, "x", COLS).rms_norm(weight(g, "norm", DType::F32, Shape::vector(COLS), COLS), 1e-5);
        let [q, k, v] = [("wq", columns[0]), ("wk", columns[1]), ("wv", columns[2])]
            .map(|(name, n)| x.linear(weight(g, name, dtype, Shape::matrix(n, COLS), n * COLS)));
        let freqs = weight(g, "freqs", DType::F32, Shape::vector(head_dim / 2), head_dim / 2);
        let rope = Rope { head_dim, pairs: RopePairs::Halves, magnitude: 1.0 };
        let receipt = k.rope(rope, g.positions(), freqs).kv_write(v, StateId(0), kv_heads);
        q.rope(rope, g.positions(), freqs).attention(receipt, look(heads, kv_heads, head_dim), None)
    })
}

/// Keys and values of 64 tokens stored in the caches of several layers; each token then sees itself in the last.
fn kv_write(kv: DType) -> Line {
    let (tokens, kv_heads, head_dim) = (64, 8, 64);
    let read = 2 * kv_heads * head_dim * size_of::<f32>();
    let work = Work::Bytes((CHAIN * tokens * (read + token_bytes(kv, kv_heads, head_dim))) as u64);
    let name = format!("kv_write/{kv}/{kv_heads}x{head_dim}/{tokens}");
    let mut line = line(name, tokens, work, move |g| {
        let [k, v] = ["k", "v"].map(|name| rows(g, name, kv_heads * head_dim));
        let receipts: Vec<_> = (0..CHAIN).map(|layer| k.kv_write(v, StateId(layer), kv_heads)).collect();
        let last = CHAIN - 1;
        let spec = Attention { state: StateId(last), window: Some(1), ..look(kv_heads, kv_heads, head_dim) };
        rows(g, "q", kv_heads * head_dim).attention(receipts[last], spec, None)
    });
    line.kv = kv;
    line
}

/// Attention as the provider `plain` computes it: scores, softmax and weighted sum one after another.
pub(crate) fn plain_attention() -> Vec<Line> {
    let mut lines = vec![attention(DType::F16, 64, 1, 1023), attention(DType::F16, 64, 64, 0)];
    for line in &mut lines {
        line.name = line.name.replacen("attention_", "attention_plain_", 1);
    }
    lines
}

/// Every line.
pub(crate) fn lines() -> Vec<Line> {
    let mut all = vec![
        chain("silu", 64, 1, |x, _| x.unary(Unary::Silu)),
        chain("gelu", 64, 1, |x, _| x.unary(Unary::Gelu)),
        chain("add_row", 64, 1, |x, row| x + row),
        chain("multiply", 64, 2, |x, _| x * x),
        chain("scale", 64, 1, |x, _| x.scale(0.99)),
        chain("softcap", 64, 1, |x, _| x.softcap(7.0)),
        chain("rms_norm", 64, 1, |x, w| x.rms_norm(w, 1e-5)),
        chain("softmax", 64, 1, |x, _| x.softmax()),
        rope(),
        qkv(DType::Q4_0, 1),
        qkv(DType::Q4_0, 64),
        kv_write(DType::F16),
        kv_write(DType::BF16),
        kv_write(DType::Q8_0),
    ];
    for dtype in [DType::F16, DType::Q4_0, DType::Q8_0, DType::Q4K, DType::Q6K] {
        let bytes = (64 * (dtype.bytes_for(COLS).expect("whole blocks") + COLS * size_of::<f32>())) as u64;
        all.push(line(format!("embed/{dtype}/64x{COLS}"), 64, Work::Bytes(bytes), move |g| {
            weight(g, "table", dtype, Shape::matrix(VOCAB, COLS), VOCAB * COLS).embed(g.tokens())
        }));
    }
    for dtype in [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
    ] {
        all.push(product(dtype, 1024, 1));
        all.push(product(dtype, 1024, 4));
        all.push(product(dtype, 512, 64));
    }
    all.push(gated(DType::Q4_0, 1024));
    for kv in [DType::F16, DType::BF16, DType::Q8_0] {
        all.push(attention(kv, 64, 1, 1023));
        all.push(attention(kv, 64, 64, 0));
    }
    all
}

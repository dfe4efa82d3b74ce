//! The graphs that are timed: one kernel each, as nearly as a graph can be, several times over other weights.

use std::cell::LazyCell;

use metallic_core::{
    Attention, Bytes, DType, Graph, GraphBuilder, Rope, RopePairs, Shape, StateId, TensorType, Unary, Var,
    Weight,
};
use metallic_gpu::OpKind;

/// Rows of every embedding table.
pub(crate) const VOCAB: usize = 64;
/// Times a light operation stands in its chain.
const CHAIN: usize = 8;
/// Copies of an operation in its graph at most.
const MOST_COPIES: usize = 8;

/// The shapes of a model.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Rows of the head.
    vocab: usize,
    /// Tokens of a prompt's step.
    prompt: usize,
    /// Tokens in the cache before one more.
    depths: [usize; 2],
    /// Bytes that no cache holds: an operation is copied until it reads as many.
    beyond: usize,
}

/// Qwen2.5-7B.
pub(crate) const REAL: Sizes = Sizes {
    hidden: 3584,
    ffn: 18944,
    heads: 28,
    kv_heads: 4,
    head_dim: 128,
    vocab: 152_064,
    prompt: 512,
    depths: [1023, 8191],
    beyond: 384 << 20,
};

/// What a processor does in no time.
pub(crate) const SMALL: Sizes = Sizes {
    hidden: 256,
    ffn: 512,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    vocab: 1024,
    prompt: 32,
    depths: [63, 255],
    beyond: 0,
};

impl Sizes {
    /// Copies of an operation that reads so many bytes.
    fn copies(&self, bytes: usize) -> usize {
        self.beyond.div_ceil(bytes.max(1)).clamp(1, MOST_COPIES)
    }

    fn attention(&self, state: usize) -> Attention {
        let Sizes { heads, kv_heads, head_dim, .. } = *self;
        Attention {
            state: StateId(state),
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

    fn rope(&self) -> Rope {
        Rope { head_dim: self.head_dim, pairs: RopePairs::Halves, magnitude: 1.0 }
    }
}

/// One line of the table, or several, where an operation takes several kernels.
pub(crate) struct Line {
    pub(crate) name: String,
    /// The operations that are shown; others lead up to them.
    pub(crate) ops: &'static [&'static str],
    /// The graph with so many copies of them.
    pub(crate) build: Box<dyn Fn(usize) -> Graph>,
    pub(crate) copies: usize,
    /// How keys and values are stored.
    pub(crate) kv: DType,
    /// Tokens of the step that is timed, and tokens in the cache before it.
    pub(crate) tokens: usize,
    pub(crate) past: usize,
}

const PRODUCTS: &[&str] = &["linear", "project", "gated_project"];

/// `copy` makes the results of a copy, which is told its number.
fn line(
    name: String,
    ops: &'static [&'static str],
    tokens: usize,
    copy: impl for<'g> Fn(&'g GraphBuilder, usize) -> Var<'g> + 'static,
) -> Line {
    let build = move |copies: usize| {
        let g = GraphBuilder::new();
        let outputs: Vec<Var<'_>> = (0..copies).map(|number| copy(&g, number)).collect();
        g.finish(&outputs).expect("a graph")
    };
    Line { name, ops, build: Box::new(build), copies: 1, kv: DType::F16, tokens, past: 0 }
}

fn len(dtype: DType, elements: usize) -> usize {
    dtype.bytes_for(elements).expect("whole blocks")
}

/// Bytes of a matrix: small scales, and bits that differ from block to block.
fn bytes(dtype: DType, len: usize) -> Bytes {
    let mut bytes = vec![0u8; self::len(dtype, len)];
    match dtype {
        DType::F32 => {
            for (i, at) in bytes.chunks_exact_mut(4).enumerate() {
                at.copy_from_slice(&((i as f32 * 0.37).sin() * 0.5).to_le_bytes());
            }
        }
        // Numbers from 0.01 to 0.1.
        DType::BF16 => bytes.as_chunks_mut().0.iter_mut().enumerate().for_each(|(i, number)| {
            *number = [(i * 7 % 251) as u8, 0x3c + (i % 2) as u8];
        }),
        // As halves and as scales of blocks, 0x11 to 0x1f are small numbers of one sign.
        _ => bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = 0x11 + (i * 7 % 14) as u8),
    }
    bytes.into()
}

fn weight<'g>(g: &'g GraphBuilder, name: &str, dtype: DType, shape: Shape, data: &Bytes) -> Var<'g> {
    g.weight(Weight { name: name.to_owned(), ty: TensorType::new(dtype, shape), data: data.clone() })
}

fn vector<'g>(g: &'g GraphBuilder, name: &str, len: usize) -> Var<'g> {
    weight(g, name, DType::F32, Shape::vector(len), &bytes(DType::F32, len))
}

fn rows<'g>(g: &'g GraphBuilder, name: &str, cols: usize) -> Var<'g> {
    weight(g, name, DType::F32, Shape::matrix(VOCAB, cols), &bytes(DType::F32, VOCAB * cols))
        .embed(g.tokens())
}

/// A light operation on rows, `CHAIN` times one after another.
fn chain(
    (name, op): (&str, &'static [&'static str]),
    (tokens, cols): (usize, usize),
    of: impl for<'g> Fn(Var<'g>, Var<'g>) -> Var<'g> + 'static,
) -> Line {
    line(format!("{name}/f32/{tokens}x{cols}"), op, tokens, move |g, _| chained(g, cols, &of))
}

fn chained<'g>(g: &'g GraphBuilder, cols: usize, of: &dyn Fn(Var<'g>, Var<'g>) -> Var<'g>) -> Var<'g> {
    let other = vector(g, "other", cols);
    (0..CHAIN).fold(rows(g, "x", cols), |x, _| of(x, other))
}

/// Rows by a matrix `[n, k]`.
fn product(sizes: &Sizes, what: &str, dtype: DType, [n, k]: [usize; 2], tokens: usize) -> Line {
    let data = LazyCell::new(move || bytes(dtype, n * k));
    let copies = if tokens > 8 { 1 } else { sizes.copies(len(dtype, n * k)) };
    let name = format!("{what}/{dtype}/{n}x{k}/{tokens}");
    Line {
        copies,
        ..line(name, PRODUCTS, tokens, move |g, number| multiplied(g, number, dtype, [n, k], &data))
    }
}

fn multiplied<'g>(
    g: &'g GraphBuilder,
    number: usize,
    dtype: DType,
    [n, k]: [usize; 2],
    data: &Bytes,
) -> Var<'g> {
    rows(g, "x", k).linear(weight(g, &format!("{number}.w"), dtype, Shape::matrix(n, k), data))
}

/// A gated pair of matrices with the norm before it, as fusion makes them one operation.
fn gated(sizes: &Sizes, dtype: DType, tokens: usize) -> Line {
    let (n, k) = (sizes.ffn, sizes.hidden);
    let data = LazyCell::new(move || bytes(dtype, n * k));
    let copies = if tokens > 8 { 1 } else { sizes.copies(2 * len(dtype, n * k)) };
    let name = format!("gate+up/{dtype}/{n}x{k}/{tokens}");
    Line { copies, ..line(name, PRODUCTS, tokens, move |g, number| gate(g, number, dtype, [n, k], &data)) }
}

fn gate<'g>(g: &'g GraphBuilder, number: usize, dtype: DType, [n, k]: [usize; 2], data: &Bytes) -> Var<'g> {
    let x = rows(g, "x", k).rms_norm(vector(g, &format!("{number}.norm"), k), 1e-5);
    let matrix = |name: &str| weight(g, &format!("{number}.{name}"), dtype, Shape::matrix(n, k), data);
    x.linear(matrix("gate")).unary(Unary::Silu) * x.linear(matrix("up"))
}

/// The way into attention as fusion makes it one operation: norm, three matrices, rotation, cache.
fn qkv(sizes: &Sizes, dtype: DType, tokens: usize) -> Line {
    let sizes = *sizes;
    let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
    let [long, short] = [q, kv].map(|n| LazyCell::new(move || bytes(dtype, n * sizes.hidden)));
    let copies = if tokens > 8 { 1 } else { sizes.copies(len(dtype, (q + 2 * kv) * sizes.hidden)) };
    let name = format!("qkv/{dtype}/{}x{}/{tokens}", q + 2 * kv, sizes.hidden);
    Line {
        copies,
        ..line(name, &["qkv"], tokens, move |g, number| way_in(g, number, &sizes, dtype, [&long, &short]))
    }
}

fn way_in<'g>(
    g: &'g GraphBuilder,
    number: usize,
    sizes: &Sizes,
    dtype: DType,
    [long, short]: [&Bytes; 2],
) -> Var<'g> {
    let k = sizes.hidden;
    let x = rows(g, "x", k).rms_norm(vector(g, &format!("{number}.norm"), k), 1e-5);
    let [q, key, value] =
        [("q", sizes.heads, long), ("k", sizes.kv_heads, short), ("v", sizes.kv_heads, short)].map(
            |(name, heads, data)| {
                let shape = Shape::matrix(heads * sizes.head_dim, k);
                x.linear(weight(g, &format!("{number}.{name}"), dtype, shape, data))
            },
        );
    let freqs = vector(g, "freqs", sizes.head_dim / 2);
    let turned = |x: Var<'g>| x.rope(sizes.rope(), g.positions(), freqs);
    let receipt = turned(key).kv_write(value, StateId(number), sizes.kv_heads);
    turned(q).attention(receipt, sizes.attention(number), None)
}

/// Attention of the next tokens after so many.
pub(crate) fn attention(sizes: &Sizes, kv: DType, tokens: usize, past: usize) -> Line {
    let sizes = *sizes;
    let Sizes { heads, kv_heads, head_dim, .. } = sizes;
    let token = 2 * len(kv, kv_heads * head_dim);
    let copies = if tokens > 1 { 1 } else { sizes.copies(token * past) };
    let name = format!("attention/{kv}/{heads}:{kv_heads}x{head_dim}/{tokens}@{past}");
    Line {
        copies,
        kv,
        past,
        ..line(name, &["attention"], tokens, move |g, number| attended(g, number, &sizes))
    }
}

fn attended<'g>(g: &'g GraphBuilder, number: usize, sizes: &Sizes) -> Var<'g> {
    let cols = sizes.kv_heads * sizes.head_dim;
    let receipt = rows(g, "k", cols).kv_write(rows(g, "v", cols), StateId(number), sizes.kv_heads);
    rows(g, "q", sizes.heads * sizes.head_dim).attention(receipt, sizes.attention(number), None)
}

/// The same and the projection of its result, which some providers do at once.
fn projected_attention(sizes: &Sizes, kv: DType, tokens: usize, past: usize) -> Line {
    let sizes = *sizes;
    let Sizes { heads, kv_heads, head_dim, hidden, .. } = sizes;
    let name = format!("attention+linear/{kv}/{heads}:{kv_heads}x{head_dim}/{tokens}@{past}");
    let shape = Shape::matrix(hidden, heads * head_dim);
    let data = bytes(DType::Q4_0, hidden * heads * head_dim);
    Line {
        kv,
        past,
        ..line(name, &["attention", "linear"], tokens, move |g, number| {
            attended(g, number, &sizes).linear(weight(g, &format!("{number}.out"), DType::Q4_0, shape, &data))
        })
    }
}

/// Keys and values of a prompt stored; each token then sees itself.
fn kv_write(sizes: &Sizes, kv: DType) -> Line {
    let (sizes, tokens) = (*sizes, sizes.prompt);
    let name = format!("kv_write/{kv}/{}x{}/{tokens}", sizes.kv_heads, sizes.head_dim);
    Line { kv, ..line(name, &["kv_write"], tokens, move |g, number| attended(g, number, &sizes)) }
}

/// A prompt's products and its attention, for the operations that have several providers.
pub(crate) fn of_prompt(sizes: &Sizes, op: OpKind) -> Option<Line> {
    match op {
        OpKind::Matmul => {
            Some(product(sizes, "prompt", DType::Q4_0, [sizes.ffn, sizes.hidden], sizes.prompt))
        }
        OpKind::Sdpa => Some(projected_attention(sizes, DType::F16, sizes.prompt, sizes.depths[0])),
        _ => None,
    }
}

/// Attention as the provider `plain` computes it: scores, softmax and weighted sum one after another.
pub(crate) fn plain_attention(sizes: &Sizes) -> Vec<Line> {
    let mut lines =
        vec![attention(sizes, DType::F16, 1, sizes.depths[0]), attention(sizes, DType::F16, sizes.prompt, 0)];
    for line in &mut lines {
        line.name = line.name.replacen("attention", "plain_attention", 1);
    }
    lines
}

/// Every line.
pub(crate) fn lines(sizes: &Sizes) -> Vec<Line> {
    let (hidden, prompt) = (sizes.hidden, sizes.prompt);
    let shape = (prompt, hidden);
    let mut all = vec![
        chain(("silu", &["unary"]), shape, |x, _| x.unary(Unary::Silu)),
        chain(("add_row", &["binary"]), shape, |x, row| x + row),
        chain(("multiply", &["binary"]), shape, |x, _| x * x),
        chain(("softcap", &["softcap"]), shape, |x, _| x.softcap(7.0)),
        chain(("rms_norm", &["rms_norm"]), shape, |x, w| x.rms_norm(w, 1e-5)),
        chain(("softmax", &["softmax"]), shape, |x, _| x.softmax()),
    ];
    for dtype in [DType::F16, DType::Q4_0, DType::Q8_0, DType::Q4K, DType::Q6K] {
        let data = bytes(dtype, VOCAB * hidden);
        all.push(line(format!("embed/{dtype}/{prompt}x{hidden}"), &["embed"], prompt, move |g, _| {
            embedded(g, dtype, hidden, &data)
        }));
    }
    all.extend([DType::F16, DType::BF16, DType::Q8_0].map(|kv| kv_write(sizes, kv)));
    // Those that have cells, where a device has matrix units.
    for dtype in [DType::F16, DType::BF16, DType::Q4_0, DType::Q8_0, DType::Q4K, DType::Q6K] {
        for tokens in [1, 8, prompt] {
            all.push(qkv(sizes, dtype, tokens));
            all.push(product(sizes, "out", dtype, [hidden, sizes.heads * sizes.head_dim], tokens));
            all.push(gated(sizes, dtype, tokens));
            all.push(product(sizes, "down", dtype, [hidden, sizes.ffn], tokens));
        }
        all.push(product(sizes, "head", dtype, [sizes.vocab, hidden], 1));
    }
    for dtype in [DType::F32, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q5K] {
        all.extend([1, 8, prompt].map(|tokens| product(sizes, "down", dtype, [hidden, sizes.ffn], tokens)));
    }
    for kv in [DType::F16, DType::BF16, DType::Q8_0] {
        all.extend(sizes.depths.map(|past| attention(sizes, kv, 1, past)));
        all.push(attention(sizes, kv, prompt, 0));
        all.push(attention(sizes, kv, prompt, sizes.depths[0]));
    }
    all
}

fn embedded<'g>(g: &'g GraphBuilder, dtype: DType, cols: usize, data: &Bytes) -> Var<'g> {
    weight(g, "table", dtype, Shape::matrix(VOCAB, cols), data).embed(g.tokens())
}

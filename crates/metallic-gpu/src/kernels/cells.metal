// Weights in cells: 16 rows by 64 columns, laid out as matrix units take them, so that the lanes of a simdgroup read
// neighbouring bytes, 16 each. The cells of 16 rows lie one after another, what scales them after all of them.
//
// A cell has two blocks of 32 columns. Lane 4 g + t has eight columns of each in the rows g and g + 8: 4 t .. 4 t + 4 and
// 16 + 4 t .. 16 + 4 t + 4, so that two products of matrix units take 16 neighbouring columns each. Levels become bfloats
// without arithmetic: the bits of a level below 128 are put under those of 128.
//
// A kind of cells has SUMS (whether products need the sums of the vectors) and AHEAD (cells that are loaded before they are
// needed), which Rust knows as well. For products of many tokens it has SCALED (columns that share a scale; 0: none has one)
// and OFFSET (whether something is taken away that is the same for all of them), the levels of its four times 16 columns as
// halfs, and the scales of the rows g and g + 8. Places within a tile have 32 bits, of which registers hold many.

constant constexpr uint CELL_ROWS = 16;
constant constexpr uint CELL_COLS = 64;
METAL_FUNC uint cells_of(uint cols) {
    return (cols + CELL_COLS - 1) / CELL_COLS;
}

// Two bfloats of 128.
constant constexpr uint MAGIC = 0x43004300;
// Two halfs of 1024.
constant constexpr uint HALF_MAGIC = 0x64006400;
// Four bits of each half of a word.
constant constexpr uint PAIRS = 0x000f000f;

// What the lanes have of the vectors for one cell: two words of each sixteen columns; and of their own token's numbers the
// sums of each sixteen.
template <uint N>
struct Columns {
    uint4 x[N][2];
    float4 sums[N];
};

// What products of levels that are 128 and more begin with: a token's numbers are the first of two columns.
METAL_FUNC float4 beginning(float sum) {
    return float4(sum, 0.0f, sum, 0.0f);
}

METAL_FUNC float4 by_rows(float2 v) {
    return float4(v.x, v.x, v.y, v.y);
}
METAL_FUNC float2 halves(uint word) {
    return float2(as_type<half2>(word));
}
// Byte `i` of both words.
METAL_FUNC float2 bytes_of(uint2 words, uint i) {
    return float2(float(words.x >> (8 * i) & 255), float(words.y >> (8 * i) & 255));
}

// Levels of four bits as 128 and more, of 16 columns: `shift` is 0 for the first, 8 for the others.
METAL_FUNC uint4 nibbles_of(uint2 words, uint shift) {
    const uint4 w = uint4(words >> shift, words >> (shift + 4));
    return uint4(and_or(w.x, PAIRS, MAGIC), and_or(w.y, PAIRS, MAGIC), and_or(w.z, PAIRS, MAGIC), and_or(w.w, PAIRS, MAGIC));
}

// The same as halfs, which take the bits of levels below 1024 under those of 1024.
METAL_FUNC uint4 half_nibbles(uint2 words, uint shift) {
    const uint4 w = uint4(words >> shift, words >> (shift + 4));
    return uint4(
        and_or(w.x, PAIRS, HALF_MAGIC), and_or(w.y, PAIRS, HALF_MAGIC), and_or(w.z, PAIRS, HALF_MAGIC),
        and_or(w.w, PAIRS, HALF_MAGIC));
}
METAL_FUNC uint4 all_less(uint4 eight, half offset) {
    return uint4(
        add_halfs(eight.x, -offset), add_halfs(eight.y, -offset), add_halfs(eight.z, -offset), add_halfs(eight.w, -offset));
}

// The products of 16 columns with N times 8 vectors, added to `sum`.
template <uint N>
METAL_FUNC void add_products(uint4 a, thread const Columns<N>& c, uint which, uint lane, thread float4* sum) {
    UNROLL for (uint n = 0; n < N; n++) {
        const uint4 x = c.x[n][which / 2];
        sum[n] = unit_product<bfloat>(a, which % 2 == 0 ? x.xy : x.zw, sum[n], lane);
    }
}

// d * (q - 8). Scales: a half for each row and block.
struct CellsQ4_0 {
    enum : uint { SUMS = 1, AHEAD = 3, SCALED = 32, OFFSET = 0 };
    uint4 q;
    uint2 d;

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 576; }
    METAL_FUNC void load(device const uchar* w, uint cells, uint cell, uint lane) {
        q = streamed((device const uint4*)(w + (cell * 512 + lane * 16)));
        d = streamed((device const uint2*)(w + (cells * 512 + cell * 64 + lane / 4 * 8)));
    }
    template <uint N>
    METAL_FUNC void add(thread const Columns<N>& c, uint lane, thread float4* to) const {
        UNROLL for (uint b = 0; b < 2; b++) {
            const uint2 words = b == 0 ? q.xy : q.zw;
            float4 sum[N];
            UNROLL for (uint n = 0; n < N; n++) sum[n] = beginning((c.sums[n][2 * b] + c.sums[n][2 * b + 1]) * -136.0f);
            add_products<N>(nibbles_of(words, 0), c, 2 * b, lane, sum);
            add_products<N>(nibbles_of(words, 8), c, 2 * b + 1, lane, sum);
            const float4 scale = by_rows(halves(here(b == 0 ? d.x : d.y)));
            UNROLL for (uint n = 0; n < N; n++) to[n] = fma(scale, sum[n], to[n]);
        }
    }
    METAL_FUNC uint4 levels(uint i) const { return all_less(half_nibbles(i < 2 ? q.xy : q.zw, i % 2 * 8), 1032.0h); }
    METAL_FUNC float2 scale(uint i) const { return halves(here(i < 2 ? d.x : d.y)); }
    METAL_FUNC float2 offset(uint) const { return float2(0.0f); }
};

// d * scale * q - dmin * min. Scales: for each row and block two bytes; d and dmin for each row and four cells.
struct CellsQ4_K {
    enum : uint { SUMS = 1, AHEAD = 3, SCALED = 32, OFFSET = 1 };
    uint4 q;
    uint2 scales, d;

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 576 + (cells + 3) / 4 * 64; }
    METAL_FUNC void load(device const uchar* w, uint cells, uint cell, uint lane) {
        q = streamed((device const uint4*)(w + (cell * 512 + lane * 16)));
        scales = streamed((device const uint2*)(w + (cells * 512 + cell * 64 + lane / 4 * 8)));
        d = streamed((device const uint2*)(w + (cells * 576 + cell / 4 * 64 + lane / 4 * 8)));
    }
    template <uint N>
    METAL_FUNC void add(thread const Columns<N>& c, uint lane, thread float4* to) const {
        const float2 one = halves(here(d.x)), two = halves(here(d.y));
        const uint2 levels = uint2(here(scales.x), here(scales.y));
        UNROLL for (uint b = 0; b < 2; b++) {
            const uint2 words = b == 0 ? q.xy : q.zw;
            float4 sum[N];
            UNROLL for (uint n = 0; n < N; n++) sum[n] = float4(0.0f);
            add_products<N>(nibbles_of(words, 0), c, 2 * b, lane, sum);
            add_products<N>(nibbles_of(words, 8), c, 2 * b + 1, lane, sum);
            const float2 scale = float2(one.x, two.x) * bytes_of(levels, 2 * b);
            const float2 offset = float2(one.y, two.y) * bytes_of(levels, 2 * b + 1) + 128.0f * scale;
            UNROLL for (uint n = 0; n < N; n++) {
                to[n] = fma(by_rows(scale), sum[n], to[n]);
                to[n].xz = fma(-offset, float2(c.sums[n][2 * b] + c.sums[n][2 * b + 1]), to[n].xz);
            }
        }
    }
    METAL_FUNC uint4 levels(uint i) const { return all_less(half_nibbles(i < 2 ? q.xy : q.zw, i % 2 * 8), 1024.0h); }
    METAL_FUNC float2 scale(uint i) const {
        return float2(halves(here(d.x)).x, halves(here(d.y)).x) * bytes_of(uint2(here(scales.x), here(scales.y)), i / 2 * 2);
    }
    METAL_FUNC float2 offset(uint i) const {
        return float2(halves(here(d.x)).y, halves(here(d.y)).y) * bytes_of(uint2(here(scales.x), here(scales.y)), i / 2 * 2 + 1);
    }
};

// d * q: the lower four bits of q + 128, and the upper ones, as levels of their own. Scales: a half for each row and block.
struct CellsQ8_0 {
    enum : uint { SUMS = 1, AHEAD = 2, SCALED = 32, OFFSET = 0 };
    uint4 q[2];
    uint2 d;

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 1088; }
    METAL_FUNC void load(device const uchar* w, uint cells, uint cell, uint lane) {
        UNROLL for (uint b = 0; b < 2; b++) q[b] = streamed((device const uint4*)(w + (cell * 1024 + b * 512 + lane * 16)));
        d = streamed((device const uint2*)(w + (cells * 1024 + cell * 64 + lane / 4 * 8)));
    }
    template <uint N>
    METAL_FUNC void add(thread const Columns<N>& c, uint lane, thread float4* to) const {
        UNROLL for (uint b = 0; b < 2; b++) {
            float4 low[N], high[N];
            UNROLL for (uint n = 0; n < N; n++) {
                const float sum = c.sums[n][2 * b] + c.sums[n][2 * b + 1];
                low[n] = beginning(sum * -128.0f);
                high[n] = beginning(sum * -136.0f);
            }
            UNROLL for (uint h = 0; h < 2; h++) {
                add_products<N>(nibbles_of(q[b].xy, 8 * h), c, 2 * b + h, lane, low);
                add_products<N>(nibbles_of(q[b].zw, 8 * h), c, 2 * b + h, lane, high);
            }
            const float4 scale = by_rows(halves(here(b == 0 ? d.x : d.y)));
            UNROLL for (uint n = 0; n < N; n++) to[n] = fma(scale, fma(high[n], 16.0f, low[n]), to[n]);
        }
    }
    METAL_FUNC uint4 levels(uint i) const {
        const uint4 low = all_less(half_nibbles(q[i / 2].xy, i % 2 * 8), 1024.0h);
        const uint4 high = all_less(half_nibbles(q[i / 2].zw, i % 2 * 8), 1032.0h);
        uint4 both;
        UNROLL for (uint j = 0; j < 4; j++)
            both[j] = fma_halfs(high[j], 16.0h, low[j]);
        return both;
    }
    METAL_FUNC float2 scale(uint i) const { return halves(here(i < 2 ? d.x : d.y)); }
    METAL_FUNC float2 offset(uint) const { return float2(0.0f); }
};

// d * scale * (q - 32): four low bits of each level, then the two others. Scales: a signed byte for each row and 16
// columns; d for each row and four cells.
struct CellsQ6_K {
    enum : uint { SUMS = 1, AHEAD = 2, SCALED = 16, OFFSET = 0 };
    uint4 q;
    uint2 high, scales;
    uint d;

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 832 + (cells + 3) / 4 * 32; }
    METAL_FUNC void load(device const uchar* w, uint cells, uint cell, uint lane) {
        q = streamed((device const uint4*)(w + (cell * 512 + lane * 16)));
        high = streamed((device const uint2*)(w + (cells * 512 + cell * 256 + lane * 8)));
        scales = streamed((device const uint2*)(w + (cells * 768 + cell * 64 + lane / 4 * 8)));
        d = streamed((device const uint*)(w + (cells * 832 + cell / 4 * 32 + lane / 4 * 4)));
    }
    template <uint N>
    METAL_FUNC void add(thread const Columns<N>& c, uint lane, thread float4* to) const {
        const float2 unit = halves(here(d));
        const uint2 levels = uint2(here(scales.x), here(scales.y));
        UNROLL for (uint i = 0; i < 4; i++) {
            // Each block has a word of high bits: crumb 2 j of either half is of the pair j of row g, 2 j + 1 of row g + 8.
            const uint top = (i < 2 ? high.x : high.y) >> (8 * (i % 2));
            const uint4 tops = uint4(top, top >> 2, top >> 4, top >> 6) & 0x00030003;
            const uint4 a = nibbles_of(i < 2 ? q.xy : q.zw, 8 * (i % 2)) | tops << 4;
            float4 sum[N];
            UNROLL for (uint n = 0; n < N; n++) sum[n] = beginning(c.sums[n][i] * -160.0f);
            add_products<N>(a, c, i, lane, sum);
            const float2 scale = unit * float2(float(as_type<char4>(levels.x)[i]), float(as_type<char4>(levels.y)[i]));
            UNROLL for (uint n = 0; n < N; n++) to[n] = fma(by_rows(scale), sum[n], to[n]);
        }
    }
    METAL_FUNC uint4 levels(uint i) const {
        const uint top = (i < 2 ? high.x : high.y) >> (8 * (i % 2));
        const uint4 tops = uint4(top, top >> 2, top >> 4, top >> 6) & 0x00030003;
        return all_less(half_nibbles(i < 2 ? q.xy : q.zw, 8 * (i % 2)) | tops << 4, 1056.0h);
    }
    METAL_FUNC float2 scale(uint i) const {
        const char4 g = as_type<char4>(here(scales.x)), h = as_type<char4>(here(scales.y));
        return halves(here(d)) * float2(float(g[i]), float(h[i]));
    }
    METAL_FUNC float2 offset(uint) const { return float2(0.0f); }
};

// Two bytes an element: the rows 0 to 8 of a block, then the others.
struct CellsBF16 {
    enum : uint { SUMS = 0, AHEAD = 1, SCALED = 0, OFFSET = 0 };
    uint4 q[4];

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 2048; }
    METAL_FUNC void load(device const uchar* w, uint, uint cell, uint lane) {
        UNROLL for (uint i = 0; i < 4; i++) q[i] = streamed((device const uint4*)(w + (cell * 2048 + lane * 16) + i * 512));
    }
    template <uint N>
    METAL_FUNC void add(thread const Columns<N>& c, uint lane, thread float4* to) const {
        UNROLL for (uint b = 0; b < 2; b++) {
            const uint4 g = q[2 * b], h = q[2 * b + 1];
            add_products<N>(uint4(g.x, h.x, g.y, h.y), c, 2 * b, lane, to);
            add_products<N>(uint4(g.z, h.z, g.w, h.w), c, 2 * b + 1, lane, to);
        }
    }
    // As bfloats: halfs do not hold them, and plans take no tiles.
    METAL_FUNC uint4 levels(uint i) const {
        const uint4 g = q[i / 2 * 2], h = q[i / 2 * 2 + 1];
        return i % 2 == 0 ? uint4(g.x, h.x, g.y, h.y) : uint4(g.z, h.z, g.w, h.w);
    }
    METAL_FUNC float2 scale(uint) const { return float2(1.0f); }
    METAL_FUNC float2 offset(uint) const { return float2(0.0f); }
};

// Halfs are two bfloats each: eight bits, and the three others.
struct CellsF16 {
    enum : uint { SUMS = 0, AHEAD = 1, SCALED = 0, OFFSET = 0 };
    CellsBF16 cells;

    static METAL_FUNC ulong bytes(uint cells) { return CellsBF16::bytes(cells); }
    METAL_FUNC void load(device const uchar* w, uint units, uint cell, uint lane) { cells.load(w, units, cell, lane); }
    template <uint N>
    METAL_FUNC void add(thread const Columns<N>& c, uint lane, thread float4* to) const {
        UNROLL for (uint i = 0; i < 4; i++) {
            const uint4 g = cells.q[i / 2 * 2], h = cells.q[i / 2 * 2 + 1];
            const uint4 words = i % 2 == 0 ? uint4(g.x, h.x, g.y, h.y) : uint4(g.z, h.z, g.w, h.w);
            uint4 most, rest;
            UNROLL for (uint j = 0; j < 4; j++) {
                const float2 v = halves(here(words[j]));
                const uint2 top = as_type<uint2>(v) & 0xffff0000u;
                const uint2 low = as_type<uint2>(v - as_type<float2>(top));
                most[j] = top.x >> 16 | top.y;
                rest[j] = low.x >> 16 | (low.y & 0xffff0000u);
            }
            add_products<N>(most, c, i, lane, to);
            add_products<N>(rest, c, i, lane, to);
        }
    }
    METAL_FUNC uint4 levels(uint i) const { return cells.levels(i); }
    METAL_FUNC float2 scale(uint) const { return float2(1.0f); }
    METAL_FUNC float2 offset(uint) const { return float2(0.0f); }
};

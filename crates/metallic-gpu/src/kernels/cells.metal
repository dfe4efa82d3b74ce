// Weights in cells: 16 rows by 64 columns, laid out as matrix units take them, so that the lanes of a simdgroup read
// neighbouring bytes, 16 each. The cells of 16 rows lie one after another, what scales them after all of them.
//
// A cell has two blocks of 32 columns. Lane 4 g + t has eight columns of each in the rows g and g + 8: 4 t .. 4 t + 4 and
// 16 + 4 t .. 16 + 4 t + 4, so that two products of matrix units take 16 neighbouring columns each. The even levels of a word are
// the bytes that a product of bytes takes first, the odd ones those it takes then.
//
// A kind of cells has BYTES (whether it takes vectors as numbers of two bytes, else as two bfloats), TIMES (how many times too great sums
// of such products are), and for the kernels that copy cells ahead SLOT, the bytes of a cell of two tiles, and DEPTH, the slots of a simdgroup, which Rust knows as well. For products of
// many tokens it has SCALED (columns that share a scale; 0: none has one)
// and OFFSET (whether something is taken away that is the same for all of them), the levels of its four times 16 columns as
// halfs, and the scales of the rows g and g + 8. Places within a tile have 32 bits, of which registers hold many.

constant constexpr uint CELL_ROWS = 16;
constant constexpr uint CELL_COLS = 64;
METAL_FUNC uint cells_of(uint cols) {
    return (cols + CELL_COLS - 1) / CELL_COLS;
}

// Two halfs of 1024.
constant constexpr uint HALF_MAGIC = 0x64006400;
// Four bits of each half of a word.
constant constexpr uint PAIRS = 0x000f000f;

// What the lanes have of the vectors for one cell, as two bfloats a number: two words of each sixteen columns.
template <uint N>
struct Columns {
    uint4 x[N][2];
};

// The same as numbers of two bytes, 256 x + y: two words of each 32 columns, and of their own token's what a one is worth in each
// 32 columns, and their sums.
template <uint N>
struct ByteColumns {
    uint4 x[N];
    float2 unit[N];
    int2 sums[N];
};

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

// Levels of four bits as bytes, of the 32 columns of two rows; and those with a sign, sixteen times as great.
METAL_FUNC uint4 nibbles_of(uint2 words) {
    return uint4(words, words >> 4) & 0x0f0f0f0f;
}
METAL_FUNC uint4 signed_nibbles_of(uint2 words) {
    return uint4(words << 4, words) & 0xf0f0f0f0;
}
// What makes levels of four bits with a sign such without one, 8 greater.
constant constexpr uint NIBBLE_SIGNS = 0x88888888;

// As halfs, which take the bits of levels below 1024 under those of 1024, of 16 columns: `shift` is 0 for the first, 8 for the others.
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

// Where the weights of a pair's tiles lie.
struct Tiles {
    device const uchar* one;
    device const uchar* two;
};

// Bytes that each cell of both tiles has, on their way into threadgroup memory, one tile's after the other's, 16 at a time by each
// lane of a simdgroup.
template <uint BYTES>
struct Run {
    // Of both tiles, or of the one that is this lane's.
    device const uint4* from[BYTES < 512 ? 1 : 2];

    METAL_FUNC void point(Tiles tiles, uint at, uint lane) {
        const uint byte = lane * 16;
        if (BYTES < 512) {
            from[0] = (device const uint4*)((byte < BYTES ? tiles.one : tiles.two) + (at + byte % BYTES));
        } else {
            from[0] = (device const uint4*)(tiles.one + (at + byte));
            from[BYTES < 512 ? 0 : 1] = (device const uint4*)(tiles.two + (at + byte));
        }
    }
    METAL_FUNC void fetch(threadgroup uchar* to, uint lane) const {
        if (BYTES < 512 && lane * 16 >= 2 * BYTES) return;
        UNROLL for (uint start = 0; start < (BYTES < 512 ? 1 : 2 * BYTES); start += 512) {
            const uint tile = start / BYTES;
            copy_ahead((threadgroup uint4*)(to + start + lane * 16), from[tile] + start % BYTES / 16, true);
        }
    }
    METAL_FUNC void next() {
        UNROLL for (uint i = 0; i < (BYTES < 512 ? 1 : 2); i++) from[i] += BYTES / 16;
    }
};

// The products of 16 columns with N times 8 vectors, added to `sum`.
template <uint N>
METAL_FUNC void add_products(uint4 a, thread const Columns<N>& c, uint which, uint lane, thread float4* sum) {
    UNROLL for (uint n = 0; n < N; n++) {
        const uint4 x = c.x[n][which / 2];
        sum[n] = unit_product<bfloat>(a, which % 2 == 0 ? x.xy : x.zw, sum[n], lane);
    }
}

// The products of a block of 32 columns with 4 N tokens, as floats. A product's columns are the two bytes of a number.
template <uint N, bool SIGNED>
METAL_FUNC void byte_products(uint4 a, thread const ByteColumns<N>& c, uint block, uint lane, thread float2* y) {
    UNROLL for (uint n = 0; n < N; n++) {
        const int4 sum = unit_bytes<SIGNED>(a, block == 0 ? c.x[n].xy : c.x[n].zw, int4(0), lane);
        y[n] = float2(sum.xz * 256 + sum.yw);
    }
}

// The products of a cell with numbers of two bytes; kinds that do not take them do not come along.
template <bool BYTES>
struct OfBytes {
    template <uint N, typename W>
    static METAL_FUNC void add(thread const W&, thread const ByteColumns<N>&, uint, thread float2*) {}
};
template <>
struct OfBytes<true> {
    template <uint N, typename W>
    static METAL_FUNC void add(thread const W& w, thread const ByteColumns<N>& c, uint lane, thread float2* sum) {
        w.template add<N>(c, lane, sum);
    }
};

// d * q, with a sign. Scales: a half for each row and block.
struct CellsQ4_0 {
    enum : uint { BYTES = 1, TIMES = 16, SLOT = 1152, DEPTH = 5, SCALED = 32, OFFSET = 0 };
    uint4 q;
    uint2 d;

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 576; }
    METAL_FUNC void load(device const uchar* w, uint cells, uint cell, uint lane) {
        q = streamed((device const uint4*)(w + (cell * 512 + lane * 16)));
        d = streamed((device const uint2*)(w + (cells * 512 + cell * 64 + lane / 4 * 8)));
    }
    struct Source {
        Run<512> levels; Run<64> scales;

        METAL_FUNC void point(Tiles tiles, uint cells, uint cell, uint lane) {
            levels.point(tiles, cell * 512, lane);
            scales.point(tiles, cells * 512 + cell * 64, lane);
        }
        METAL_FUNC void fetch(threadgroup uchar* to, uint lane) const {
            levels.fetch(to, lane);
            scales.fetch(to + 1024, lane);
        }
        // On to this cell, from the one before it.
        METAL_FUNC void next(uint) {
            levels.next();
            scales.next();
        }
    };
    // Of the first or the second tile.
    METAL_FUNC void take(threadgroup const uchar* slot, uint tile, uint lane) {
        q = in_one((threadgroup const uint4*)(slot + tile * 512 + lane * 16));
        d = in_one((threadgroup const uint2*)(slot + 1024 + tile * 64 + lane / 4 * 8));
    }
    template <uint N>
    METAL_FUNC void add(thread const ByteColumns<N>& c, uint lane, thread float2* to) const {
        UNROLL for (uint b = 0; b < 2; b++) {
            float2 y[N];
            byte_products<N, true>(signed_nibbles_of(b == 0 ? q.xy : q.zw), c, b, lane, y);
            const float2 scale = halves(b == 0 ? d.x : d.y);
            UNROLL for (uint n = 0; n < N; n++) to[n] = fma(scale * c.unit[n][b], y[n], to[n]);
        }
    }
    METAL_FUNC uint4 levels(uint i) const {
        return all_less(half_nibbles((i < 2 ? q.xy : q.zw) ^ NIBBLE_SIGNS, i % 2 * 8), 1032.0h);
    }
    METAL_FUNC float2 scale(uint i) const { return halves(here(i < 2 ? d.x : d.y)); }
    METAL_FUNC float2 offset(uint) const { return float2(0.0f); }
};

// d * scale * q - dmin * min. Scales: for each row and block two bytes; d and dmin for each row and four cells.
struct CellsQ4_K {
    enum : uint { BYTES = 1, TIMES = 1, SLOT = 1280, DEPTH = 6, SCALED = 32, OFFSET = 1 };
    uint4 q;
    uint2 scales, d;

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 576 + (cells + 3) / 4 * 64; }
    METAL_FUNC void load(device const uchar* w, uint cells, uint cell, uint lane) {
        q = streamed((device const uint4*)(w + (cell * 512 + lane * 16)));
        scales = streamed((device const uint2*)(w + (cells * 512 + cell * 64 + lane / 4 * 8)));
        d = streamed((device const uint2*)(w + (cells * 576 + cell / 4 * 64 + lane / 4 * 8)));
    }
    struct Source {
        Run<512> levels; Run<64> scales; Run<64> units;

        METAL_FUNC void point(Tiles tiles, uint cells, uint cell, uint lane) {
            levels.point(tiles, cell * 512, lane);
            scales.point(tiles, cells * 512 + cell * 64, lane);
            units.point(tiles, cells * 576 + cell / 4 * 64, lane);
        }
        METAL_FUNC void fetch(threadgroup uchar* to, uint lane) const {
            levels.fetch(to, lane);
            scales.fetch(to + 1024, lane);
            units.fetch(to + 1152, lane);
        }
        // On to this cell, from the one before it.
        METAL_FUNC void next(uint cell) {
            levels.next();
            scales.next();
            if (cell % 4 == 0) units.next();
        }
    };
    // Of the first or the second tile.
    METAL_FUNC void take(threadgroup const uchar* slot, uint tile, uint lane) {
        q = in_one((threadgroup const uint4*)(slot + tile * 512 + lane * 16));
        scales = in_one((threadgroup const uint2*)(slot + 1024 + tile * 64 + lane / 4 * 8));
        d = in_one((threadgroup const uint2*)(slot + 1152 + tile * 64 + lane / 4 * 8));
    }
    template <uint N>
    METAL_FUNC void add(thread const ByteColumns<N>& c, uint lane, thread float2* to) const {
        const float2 one = halves(d.x), two = halves(d.y);
        UNROLL for (uint b = 0; b < 2; b++) {
            float2 y[N];
            byte_products<N, false>(nibbles_of(b == 0 ? q.xy : q.zw), c, b, lane, y);
            const float2 scale = float2(one.x, two.x) * bytes_of(scales, 2 * b);
            const float2 offset = float2(one.y, two.y) * bytes_of(scales, 2 * b + 1);
            UNROLL for (uint n = 0; n < N; n++) {
                const float2 less = fma(scale, y[n], -offset * float(c.sums[n][b]));
                to[n] = fma(float2(c.unit[n][b]), less, to[n]);
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

// d * q: the lower four bits of q, and the upper ones, which have its sign, as levels of their own. Scales: a half for each row and block.
struct CellsQ8_0 {
    enum : uint { BYTES = 1, TIMES = 1, SLOT = 2176, DEPTH = 4, SCALED = 32, OFFSET = 0 };
    uint4 q[2];
    uint2 d;

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 1088; }
    METAL_FUNC void load(device const uchar* w, uint cells, uint cell, uint lane) {
        UNROLL for (uint b = 0; b < 2; b++) q[b] = streamed((device const uint4*)(w + (cell * 1024 + b * 512 + lane * 16)));
        d = streamed((device const uint2*)(w + (cells * 1024 + cell * 64 + lane / 4 * 8)));
    }
    struct Source {
        Run<1024> levels; Run<64> scales;

        METAL_FUNC void point(Tiles tiles, uint cells, uint cell, uint lane) {
            levels.point(tiles, cell * 1024, lane);
            scales.point(tiles, cells * 1024 + cell * 64, lane);
        }
        METAL_FUNC void fetch(threadgroup uchar* to, uint lane) const {
            levels.fetch(to, lane);
            scales.fetch(to + 2048, lane);
        }
        // On to this cell, from the one before it.
        METAL_FUNC void next(uint) {
            levels.next();
            scales.next();
        }
    };
    // Of the first or the second tile.
    METAL_FUNC void take(threadgroup const uchar* slot, uint tile, uint lane) {
        UNROLL for (uint b = 0; b < 2; b++) q[b] = in_one((threadgroup const uint4*)(slot + tile * 1024 + b * 512 + lane * 16));
        d = in_one((threadgroup const uint2*)(slot + 2048 + tile * 64 + lane / 4 * 8));
    }
    template <uint N>
    METAL_FUNC void add(thread const ByteColumns<N>& c, uint lane, thread float2* to) const {
        UNROLL for (uint b = 0; b < 2; b++) {
            // Lower bits of a word's bytes, and upper ones of another's.
            const uint2 low = q[b].xy, high = q[b].zw;
            const uint4 levels = uint4((low & 0x0f0f0f0f) | (high << 4 & 0xf0f0f0f0), (low >> 4 & 0x0f0f0f0f) | (high & 0xf0f0f0f0));
            float2 y[N];
            byte_products<N, true>(levels, c, b, lane, y);
            const float2 scale = halves(b == 0 ? d.x : d.y);
            UNROLL for (uint n = 0; n < N; n++) to[n] = fma(scale * c.unit[n][b], y[n], to[n]);
        }
    }
    METAL_FUNC uint4 levels(uint i) const {
        const uint4 low = all_less(half_nibbles(q[i / 2].xy, i % 2 * 8), 1024.0h);
        const uint4 high = all_less(half_nibbles(q[i / 2].zw ^ NIBBLE_SIGNS, i % 2 * 8), 1032.0h);
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
    enum : uint { BYTES = 1, TIMES = 1, SLOT = 1792, DEPTH = 5, SCALED = 16, OFFSET = 0 };
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
    struct Source {
        Run<512> low; Run<256> high; Run<64> scales; Run<32> units;

        METAL_FUNC void point(Tiles tiles, uint cells, uint cell, uint lane) {
            low.point(tiles, cell * 512, lane);
            high.point(tiles, cells * 512 + cell * 256, lane);
            scales.point(tiles, cells * 768 + cell * 64, lane);
            units.point(tiles, cells * 832 + cell / 4 * 32, lane);
        }
        METAL_FUNC void fetch(threadgroup uchar* to, uint lane) const {
            low.fetch(to, lane);
            high.fetch(to + 1024, lane);
            scales.fetch(to + 1536, lane);
            units.fetch(to + 1664, lane);
        }
        // On to this cell, from the one before it.
        METAL_FUNC void next(uint cell) {
            low.next();
            high.next();
            scales.next();
            if (cell % 4 == 0) units.next();
        }
    };
    // Of the first or the second tile.
    METAL_FUNC void take(threadgroup const uchar* slot, uint tile, uint lane) {
        q = in_one((threadgroup const uint4*)(slot + tile * 512 + lane * 16));
        high = in_one((threadgroup const uint2*)(slot + 1024 + tile * 256 + lane * 8));
        scales = in_one((threadgroup const uint2*)(slot + 1536 + tile * 64 + lane / 4 * 8));
        d = *(threadgroup const uint*)(slot + 1664 + tile * 32 + lane / 4 * 4);
    }
    template <uint N>
    METAL_FUNC void add(thread const ByteColumns<N>& c, uint lane, thread float2* to) const {
        const float2 unit = halves(d) * 0.25f;
        UNROLL for (uint b = 0; b < 2; b++) {
            // Each block has a word of high bits: crumb 2 j of either half is of the pair j of row g, 2 j + 1 of row g + 8. Bytes are
            // 4 (q - 32).
            const uint2 words = b == 0 ? q.xy : q.zw;
            const uint top = b == 0 ? high.x : high.y;
            const uint4 low = uint4(words << 2, words >> 2), tops = uint4(top << 6, top << 4, top << 2, top);
            const uint4 levels = ((low & 0x3c3c3c3c) | (tops & 0xc0c0c0c0)) ^ 0x80808080;
            // The first sixteen columns are every other byte.
            UNROLL for (uint i = 0; i < 2; i++) {
                float2 y[N];
                byte_products<N, true>(levels & (i == 0 ? 0x00ff00ff : 0xff00ff00), c, b, lane, y);
                const uint at = 2 * b + i;
                const float2 scale = unit * float2(float(as_type<char4>(scales.x)[at]), float(as_type<char4>(scales.y)[at]));
                UNROLL for (uint n = 0; n < N; n++) to[n] = fma(scale * c.unit[n][b], y[n], to[n]);
            }
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
    enum : uint { BYTES = 0, TIMES = 1, SLOT = 4096, DEPTH = 2, SCALED = 0, OFFSET = 0 };
    uint4 q[4];

    static METAL_FUNC ulong bytes(uint cells) { return ulong(cells) * 2048; }
    METAL_FUNC void load(device const uchar* w, uint, uint cell, uint lane) {
        UNROLL for (uint i = 0; i < 4; i++) q[i] = streamed((device const uint4*)(w + (cell * 2048 + lane * 16) + i * 512));
    }
    struct Source {
        Run<2048> numbers;

        METAL_FUNC void point(Tiles tiles, uint, uint cell, uint lane) {
            numbers.point(tiles, cell * 2048, lane);
        }
        METAL_FUNC void fetch(threadgroup uchar* to, uint lane) const {
            numbers.fetch(to, lane);
        }
        // On to this cell, from the one before it.
        METAL_FUNC void next(uint) {
            numbers.next();
        }
    };
    // Of the first or the second tile.
    METAL_FUNC void take(threadgroup const uchar* slot, uint tile, uint lane) {
        UNROLL for (uint i = 0; i < 4; i++) q[i] = in_one((threadgroup const uint4*)(slot + tile * 2048 + i * 512 + lane * 16));
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
    enum : uint { BYTES = 0, TIMES = 1, SLOT = CellsBF16::SLOT, DEPTH = CellsBF16::DEPTH, SCALED = 0, OFFSET = 0 };
    CellsBF16 cells;

    static METAL_FUNC ulong bytes(uint cells) { return CellsBF16::bytes(cells); }
    METAL_FUNC void load(device const uchar* w, uint units, uint cell, uint lane) { cells.load(w, units, cell, lane); }
    typedef CellsBF16::Source Source;
    // Of the first or the second tile.
    METAL_FUNC void take(threadgroup const uchar* slot, uint tile, uint lane) {
        cells.take(slot, tile, lane);
    }
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

// Weights from the layout of their files to cells: a thread writes a word. Rows and columns past the end become zeros.

constant uint PACKED [[function_constant(0)]];

// What a word is of: a tile, and its place there.
struct Place {
    uint tile, cells, word;
};

// The same within a region that has so many words of each cell: a lane has a few that follow each other, a row as many lanes.
struct InCell {
    uint cell, word, lane, row;
    METAL_FUNC InCell(Place at, uint per_cell, uint words_of_lane, uint lanes_of_row) {
        cell = at.word / per_cell;
        word = at.word % words_of_lane;
        lane = at.word % per_cell / words_of_lane % 32;
        row = at.tile * CELL_ROWS + lane / lanes_of_row;
    }
};

struct Raw {
    device const uchar* bytes;
    uint rows, cols;

    METAL_FUNC bool has(uint row, uint col) const { return row < rows && col < cols; }
    METAL_FUNC device const uchar* block(uint row, uint col, uint elements, uint bytes_of_block) const {
        return bytes + (ulong(row) * (cols / elements) + col / elements) * bytes_of_block;
    }
    METAL_FUNC uint two_bytes(device const uchar* p) const { return uint(p[0]) | uint(p[1]) << 8; }
    METAL_FUNC uint four_bytes(device const uchar* p) const { return two_bytes(p) | two_bytes(p + 2) << 16; }
};

// Eight levels of four bits as a cell's word has them; `low` and `high` have four each, one to a byte.
METAL_FUNC uint eight_nibbles(uint low, uint high) {
    const uint near = low & NIBBLES, far = high & NIBBLES;
    const uint even = (near & 15) | (near >> 16 & 15) << 4 | (far & 15) << 8 | (far >> 16 & 15) << 12;
    const uint odd = (near >> 8 & 15) | (near >> 24 & 15) << 4 | (far >> 8 & 15) << 8 | (far >> 24 & 15) << 12;
    return even | odd << 16;
}

// Levels of a block of 32 columns that lie 16 apart in the halves of bytes, 8 too great: with a sign.
METAL_FUNC uint nibble_word(Raw raw, InCell at, uint elements, uint bytes, uint skip) {
    const uint row = at.row + at.word % 2 * 8, col = at.cell * CELL_COLS + at.word / 2 * 32;
    if (!raw.has(row, col)) return 0;
    const uint q = raw.four_bytes(raw.block(row, col, elements, bytes) + skip + at.lane % 4 * 4);
    return eight_nibbles(q, q >> 4) ^ NIBBLE_SIGNS;
}

// The first two bytes of the blocks of the rows g and g + 8.
METAL_FUNC uint first_halves(Raw raw, uint row, uint col, uint elements, uint bytes, uint skip) {
    const uint one = raw.has(row, col) ? raw.two_bytes(raw.block(row, col, elements, bytes) + skip) : 0;
    const uint two = raw.has(row + 8, col) ? raw.two_bytes(raw.block(row + 8, col, elements, bytes) + skip) : 0;
    return one | two << 16;
}

struct PackQ4_0 {
    static METAL_FUNC uint word(Raw raw, Place at) {
        if (at.word < at.cells * 128) return nibble_word(raw, InCell(at, 128, 4, 4), 32, 18, 2);
        at.word -= at.cells * 128;
        const InCell in(at, 16, 2, 1);
        return first_halves(raw, in.row, in.cell * CELL_COLS + in.word * 32, 32, 18, 0);
    }
};

struct PackQ8_0 {
    static METAL_FUNC uint word(Raw raw, Place at) {
        if (at.word < at.cells * 256) {
            const InCell in(at, 256, 4, 4);
            const uint block = at.word / 128 % 2, row = in.row + in.word % 2 * 8;
            const uint col = in.cell * CELL_COLS + block * 32;
            if (!raw.has(row, col)) return 0;
            device const uchar* q = raw.block(row, col, 32, 34) + 2 + in.lane % 4 * 4;
            const uint near = raw.four_bytes(q), far = raw.four_bytes(q + 16);
            return eight_nibbles(near >> (in.word / 2 * 4), far >> (in.word / 2 * 4));
        }
        at.word -= at.cells * 256;
        const InCell in(at, 16, 2, 1);
        return first_halves(raw, in.row, in.cell * CELL_COLS + in.word * 32, 32, 34, 0);
    }
};

struct PackQ4_K {
    static METAL_FUNC uint word(Raw raw, Place at) {
        if (at.word < at.cells * 128) {
            const InCell in(at, 128, 4, 4);
            const uint row = in.row + in.word % 2 * 8, col = in.cell * CELL_COLS + in.word / 2 * 32;
            if (!raw.has(row, col)) return 0;
            device const uchar* q = raw.block(row, col, 256, 144) + 16 + col % 256 / 64 * 32 + in.lane % 4 * 4;
            const uint shift = col % 64 / 32 * 4;
            return eight_nibbles(raw.four_bytes(q) >> shift, raw.four_bytes(q + 16) >> shift);
        }
        at.word -= at.cells * 128;
        if (at.word < at.cells * 16) {
            const InCell in(at, 16, 2, 1);
            const uint row = in.row + in.word * 8, col = in.cell * CELL_COLS;
            if (!raw.has(row, col)) return 0;
            device const uchar* scales = raw.block(row, col, 256, 144) + 4;
            const float2 one = scale_min(scales, col % 256 / 32), two = scale_min(scales, col % 256 / 32 + 1);
            return uint(one.x) | uint(one.y) << 8 | uint(two.x) << 16 | uint(two.y) << 24;
        }
        at.word -= at.cells * 16;
        const InCell in(at, 16, 2, 1);
        const uint row = in.row + in.word * 8, col = in.cell * 256;
        return raw.has(row, col) ? raw.four_bytes(raw.block(row, col, 256, 144)) : 0;
    }
};

struct PackQ6_K {
    static METAL_FUNC uint word(Raw raw, Place at) {
        if (at.word < at.cells * 192) {
            const bool high = at.word >= at.cells * 128;
            if (!high) {
                const InCell in(at, 128, 4, 4);
                const uint row = in.row + in.word % 2 * 8, col = in.cell * CELL_COLS + in.word / 2 * 32;
                if (!raw.has(row, col)) return 0;
                device const uchar* q = raw.block(row, col, 256, 210) + col % 256 / 128 * 64 + col % 64 + in.lane % 4 * 4;
                const uint shift = col % 128 / 64 * 4;
                return eight_nibbles(raw.four_bytes(q) >> shift, raw.four_bytes(q + 16) >> shift);
            }
            at.word -= at.cells * 128;
            const InCell in(at, 64, 2, 4);
            const uint col = in.cell * CELL_COLS + in.word * 32, shift = col % 128 / 32 * 2;
            uint word = 0;
            for (uint part = 0; part < 4; part++) {
                // Sixteen columns each; of the rows g and g + 8.
                const uint row = in.row + part % 2 * 8;
                if (!raw.has(row, col)) continue;
                device const uchar* q =
                    raw.block(row, col, 256, 210) + 128 + col % 256 / 128 * 32 + part / 2 * 16 + in.lane % 4 * 4;
                for (uint e = 0; e < 4; e++) {
                    word |= (uint(q[e]) >> shift & 3) << (part / 2 * 8 + part % 2 * 2 + e / 2 * 4 + e % 2 * 16);
                }
            }
            return word;
        }
        at.word -= at.cells * 192;
        if (at.word < at.cells * 16) {
            const InCell in(at, 16, 2, 1);
            const uint row = in.row + in.word * 8, col = in.cell * CELL_COLS;
            if (!raw.has(row, col)) return 0;
            return raw.four_bytes(raw.block(row, col, 256, 210) + 192 + col % 256 / 16);
        }
        at.word -= at.cells * 16;
        const InCell in(at, 8, 1, 1);
        return first_halves(raw, in.row, in.cell * 256, 256, 210, 208);
    }
};

// Two bytes an element, of any kind.
struct PackBF16 {
    static METAL_FUNC uint word(Raw raw, Place at) {
        const InCell in(at, 512, 4, 4);
        const uint part = at.word / 128 % 4, row = in.row + part % 2 * 8;
        const uint col = in.cell * CELL_COLS + part / 2 * 32 + in.word / 2 * 16 + in.lane % 4 * 4 + in.word % 2 * 2;
        const uint one = raw.has(row, col) ? raw.two_bytes(raw.block(row, col, 1, 2)) : 0;
        const uint two = raw.has(row, col + 1) ? raw.two_bytes(raw.block(row, col + 1, 1, 2)) : 0;
        return one | two << 16;
    }
};
typedef PackBF16 PackF16;

kernel void cell_pack(
    constant CellPackParams& p [[buffer(0)]], device const uchar* raw [[buffer(1)]], device uint* out [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.words || at.y * CELL_ROWS >= p.rows) return;
    const Raw from = {raw, p.rows, p.cols};
    const Place place = {at.y, (p.cols + CELL_COLS - 1) / CELL_COLS, at.x};
    uint word = 0;
#define PACK(KIND) word = Pack##KIND::word(from, place);
    FOR_CELL_TYPE(PACKED, PACK)
#undef PACK
    out[ulong(at.y) * p.words + at.x] = word;
}

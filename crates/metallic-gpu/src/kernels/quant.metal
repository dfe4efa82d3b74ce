// Weights as they lie in their files, row-major, in blocks along a row. Everything goes by octets: eight neighbouring
// elements from a column that is a multiple of 8. An element is `level * scale + offset`.
//
// A format is a struct, `WeightQ4_K`, with BLOCK (elements of a block), BYTES (bytes of a block), SPLIT (distance of two
// octets that share bytes), OFFSET (whether offsets are anything but 0) and `octet`, which is given the block of a column.
// Blocks are aligned to 2 bytes, no more.

// The low bits of each byte of a word.
constant constexpr uint BITS = 0x01010101, CRUMBS = 0x03030303, NIBBLES = 0x0f0f0f0f;

struct Octet {
    float4 lo, hi; // levels
    float scale, offset;
};

struct Eight {
    float4 lo, hi;
};

METAL_FUNC uint2 bytes8(device const uchar* p) {
    const ushort4 v = ushort4(*(device const packed_ushort4*)p);
    return uint2(uint(v.x) | uint(v.y) << 16, uint(v.z) | uint(v.w) << 16);
}

METAL_FUNC float half_at(device const uchar* p) {
    return float(*(device const half*)p);
}

// Levels are put together in the bytes of a word, four at a time, and become numbers at the end.
METAL_FUNC float4 each_byte(uint word) {
    return float4(as_type<uchar4>(word));
}
METAL_FUNC float4 each_signed_byte(uint word) {
    return float4(as_type<char4>(word));
}

// The lowest four bits of a word, one in each byte: bit k goes to bit 8k.
METAL_FUNC uint bit_per_byte(uint word) {
    return (word & 15) * 0x00204081u & 0x01010101u;
}

struct WeightF32 {
    enum : uint { BLOCK = 1, BYTES = 4, SPLIT = 8, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* p, uint) {
        const uint4 lo = uint4(bytes8(p), bytes8(p + 8)), hi = uint4(bytes8(p + 16), bytes8(p + 24));
        return {as_type<float4>(lo), as_type<float4>(hi), 1.0f, 0.0f};
    }
    static METAL_FUNC float one(device const uchar* row, uint col) {
        device const ushort* p = (device const ushort*)row + 2 * ulong(col);
        return as_type<float>(uint(p[0]) | uint(p[1]) << 16);
    }
};

struct WeightF16 {
    enum : uint { BLOCK = 1, BYTES = 2, SPLIT = 8, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint) {
        device const packed_half4* p = (device const packed_half4*)block;
        return {float4(half4(p[0])), float4(half4(p[1])), 1.0f, 0.0f};
    }
    static METAL_FUNC float one(device const uchar* row, uint col) { return float(((device const half*)row)[col]); }
};

struct WeightBF16 {
    enum : uint { BLOCK = 1, BYTES = 2, SPLIT = 8, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint) {
        device const packed_ushort4* p = (device const packed_ushort4*)block;
        return {as_type<float4>(uint4(ushort4(p[0])) << 16), as_type<float4>(uint4(ushort4(p[1])) << 16), 1.0f, 0.0f};
    }
    static METAL_FUNC float one(device const uchar* row, uint col) {
        return as_type<float>(uint(((device const ushort*)row)[col]) << 16);
    }
};

// [d][q: element i in the low, i + 16 in the high half of byte i]: d * (q - 8)
struct WeightQ4_0 {
    enum : uint { BLOCK = 32, BYTES = 18, SPLIT = 16, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint2 q = bytes8(block + 2 + (col & 8));
        const uint shift = (col & 16) >> 2;
        const float4 lo = each_byte(q.x >> shift & NIBBLES), hi = each_byte(q.y >> shift & NIBBLES);
        return {lo - 8.0f, hi - 8.0f, half_at(block), 0.0f};
    }
};

// [d][m][q as in Q4_0]: d * q + m
struct WeightQ4_1 {
    enum : uint { BLOCK = 32, BYTES = 20, SPLIT = 16, OFFSET = 1 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint2 q = bytes8(block + 4 + (col & 8));
        const uint shift = (col & 16) >> 2;
        const float4 lo = each_byte(q.x >> shift & NIBBLES), hi = each_byte(q.y >> shift & NIBBLES);
        return {lo, hi, half_at(block), half_at(block + 2)};
    }
};

// Levels of five bits: bit i of a word is on top of element i, the other four as in Q4_0.
METAL_FUNC Eight five_bits(device const uchar* high, uint col) {
    const ushort2 word = ushort2(*(device const packed_ushort2*)high);
    const uint2 q = bytes8(high + 4 + (col & 8));
    const uint shift = (col & 16) >> 2, top = uint(word.x) | uint(word.y) << 16;
    const uint bits = top >> (col & 24);
    const uint lo = (q.x >> shift & NIBBLES) | bit_per_byte(bits) << 4;
    const uint hi = (q.y >> shift & NIBBLES) | bit_per_byte(bits >> 4) << 4;
    return {each_byte(lo), each_byte(hi)};
}

// [d][fifth bits][low bits]: d * (q - 16)
struct WeightQ5_0 {
    enum : uint { BLOCK = 32, BYTES = 22, SPLIT = 16, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const Eight q = five_bits(block + 2, col);
        return {q.lo - 16.0f, q.hi - 16.0f, half_at(block), 0.0f};
    }
};

// [d][m][fifth bits][low bits]: d * q + m
struct WeightQ5_1 {
    enum : uint { BLOCK = 32, BYTES = 24, SPLIT = 16, OFFSET = 1 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const Eight q = five_bits(block + 4, col);
        return {q.lo, q.hi, half_at(block), half_at(block + 2)};
    }
};

// [d][q: signed bytes]: d * q
struct WeightQ8_0 {
    enum : uint { BLOCK = 32, BYTES = 34, SPLIT = 8, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint2 q = bytes8(block + 2 + (col & 24));
        return {each_signed_byte(q.x), each_signed_byte(q.y), half_at(block), 0.0f};
    }
};

// Two bits each: element 32k + i of a half of 128 is at bits 2k of its byte i.
METAL_FUNC uint crumbs_at(uint col) {
    return (col & 128) / 4 + (col & 31);
}
METAL_FUNC uint crumbs_shift(uint col) {
    return (col & 96) / 16;
}

// [16 scales of 4 bits, each with a min of 4 bits][q][d][dmin]: d * scale * q - dmin * min
struct WeightQ2_K {
    enum : uint { BLOCK = 256, BYTES = 84, SPLIT = 32, OFFSET = 1 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint2 q = bytes8(block + 16 + crumbs_at(col));
        const uint shift = crumbs_shift(col), scale = block[(col & 255) / 16];
        const float4 lo = each_byte(q.x >> shift & CRUMBS), hi = each_byte(q.y >> shift & CRUMBS);
        return {lo, hi, half_at(block + 80) * float(scale & 15), -(half_at(block + 82) * float(scale >> 4))};
    }
};

// [third bits: bit k of byte i is of element 32k + i][q][16 scales of 6 bits][d]: d * (scale - 32) * (q - 4)
struct WeightQ3_K {
    enum : uint { BLOCK = 256, BYTES = 110, SPLIT = 32, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint2 q = bytes8(block + 32 + crumbs_at(col)), top = bytes8(block + (col & 31));
        const uint shift = crumbs_shift(col), bit = (col & 255) / 32, sub = (col & 255) / 16;
        const uint lo = (q.x >> shift & CRUMBS) | (top.x >> bit & BITS) << 2;
        const uint hi = (q.y >> shift & CRUMBS) | (top.y >> bit & BITS) << 2;
        // Four low bits in nibbles of 8 bytes, two high bits in 4 more.
        const uint low = uint(block[96 + sub % 8]) >> (4 * (sub / 8)) & 15;
        const uint high = uint(block[104 + sub % 4]) >> (2 * (sub / 4)) & 3;
        const float scale = half_at(block + 108) * (float(low | high << 4) - 32.0f);
        return {each_byte(lo) - 4.0f, each_byte(hi) - 4.0f, scale, 0.0f};
    }
};

// Scale and min of sub-block `sub` of 8: the first four in the low six bits of bytes 0..4 and 4..8, the others with four
// bits in bytes 8..12 and two bits on top of the first ones.
METAL_FUNC float2 scale_min(device const uchar* scales, uint sub) {
    const uint a = scales[sub & 3], b = scales[4 + (sub & 3)], c = scales[8 + (sub & 3)];
    const uint scale = sub < 4 ? a & 63 : (c & 15) | a >> 6 << 4;
    const uint min = sub < 4 ? b & 63 : c >> 4 | b >> 6 << 4;
    return float2(float(scale), float(min));
}

// [d][dmin][8 scales and mins of 6 bits][q: each 64 elements in 32 bytes, the first 32 in the low halves]
struct WeightQ4_K {
    enum : uint { BLOCK = 256, BYTES = 144, SPLIT = 32, OFFSET = 1 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint sub = (col & 255) / 32, shift = (sub & 1) * 4;
        const uint2 q = bytes8(block + 16 + sub / 2 * 32 + (col & 31));
        const float2 s = scale_min(block + 4, sub);
        const float4 lo = each_byte(q.x >> shift & NIBBLES), hi = each_byte(q.y >> shift & NIBBLES);
        return {lo, hi, half_at(block) * s.x, -(half_at(block + 2) * s.y)};
    }
};

// [d][dmin][scales][fifth bits: bit k of byte i is of element 32k + i][q], as in Q4_K
struct WeightQ5_K {
    enum : uint { BLOCK = 256, BYTES = 176, SPLIT = 32, OFFSET = 1 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint sub = (col & 255) / 32, shift = (sub & 1) * 4;
        const uint2 q = bytes8(block + 48 + sub / 2 * 32 + (col & 31)), top = bytes8(block + 16 + (col & 31));
        const float2 s = scale_min(block + 4, sub);
        const uint lo = (q.x >> shift & NIBBLES) | (top.x >> sub & BITS) << 4;
        const uint hi = (q.y >> shift & NIBBLES) | (top.y >> sub & BITS) << 4;
        return {each_byte(lo), each_byte(hi), half_at(block) * s.x, -(half_at(block + 2) * s.y)};
    }
};

// [low four bits][high two bits][16 signed scales][d]: d * scale * (q - 32). Each half of 128 elements has 64 bytes of
// low bits, its first 64 elements in the low halves, and 32 bytes of high bits laid out as in Q2_K.
struct WeightQ6_K {
    enum : uint { BLOCK = 256, BYTES = 210, SPLIT = 64, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint2 q = bytes8(block + (col & 128) / 2 + (col & 63)), top = bytes8(block + 128 + crumbs_at(col));
        const uint shift = (col & 64) / 16, crumb = crumbs_shift(col);
        const uint lo = (q.x >> shift & NIBBLES) | (top.x >> crumb & CRUMBS) << 4;
        const uint hi = (q.y >> shift & NIBBLES) | (top.y >> crumb & CRUMBS) << 4;
        const float scale = float(as_type<char>(block[192 + (col & 255) / 16]));
        return {each_byte(lo) - 32.0f, each_byte(hi) - 32.0f, half_at(block + 208) * scale, 0.0f};
    }
};

// What four bits stand for.
constant constexpr float IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constant constexpr float MXFP4_LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

METAL_FUNC float4 looked_up(constant const float* levels, uint word) {
    const uchar4 q = as_type<uchar4>(word & NIBBLES);
    return float4(levels[q.x], levels[q.y], levels[q.z], levels[q.w]);
}

// [d][q as in Q4_0]: d * level(q)
struct WeightIQ4_NL {
    enum : uint { BLOCK = 32, BYTES = 18, SPLIT = 16, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint2 q = bytes8(block + 2 + (col & 8)) >> ((col & 16) >> 2);
        return {looked_up(IQ4_LEVELS, q.x), looked_up(IQ4_LEVELS, q.y), half_at(block), 0.0f};
    }
};

// [d][high bits of 8 scales: 16 bits][low bits of 8 scales: 32 bits][q of each 32 elements as in Q4_0]
struct WeightIQ4_XS {
    enum : uint { BLOCK = 256, BYTES = 136, SPLIT = 16, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        const uint sub = (col & 255) / 32;
        const uint2 q = bytes8(block + 8 + 16 * sub + (col & 8)) >> ((col & 16) >> 2);
        const uint low = uint(block[4 + sub / 2]) >> (4 * (sub & 1)) & 15;
        const uint high = uint(block[2 + sub / 4]) >> (2 * (sub & 3)) & 3;
        const float scale = half_at(block) * (float(low | high << 4) - 32.0f);
        return {looked_up(IQ4_LEVELS, q.x), looked_up(IQ4_LEVELS, q.y), scale, 0.0f};
    }
};

// [e][q as in Q4_0]: 2^(e - 128) * level(q). Blocks are not aligned at all.
struct WeightMXFP4 {
    enum : uint { BLOCK = 32, BYTES = 17, SPLIT = 16, OFFSET = 0 };
    static METAL_FUNC Octet octet(device const uchar* block, uint col) {
        device const packed_uchar4* bytes = (device const packed_uchar4*)(block + 1 + (col & 8));
        const uint2 q = uint2(as_type<uint>(uchar4(bytes[0])), as_type<uint>(uchar4(bytes[1]))) >> ((col & 16) >> 2);
        const uint e = block[0];
        const float scale = as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        return {looked_up(MXFP4_LEVELS, q.x), looked_up(MXFP4_LEVELS, q.y), scale, 0.0f};
    }
};

template <typename W>
inline Octet octet_at(device const uchar* row, uint col) {
    return W::octet(row + ulong(col / W::BLOCK) * W::BYTES, col);
}

// Bytes of a row.
template <typename W>
inline ulong row_bytes(uint cols) {
    return ulong(cols / W::BLOCK) * W::BYTES;
}
inline ulong row_bytes(uint type, uint cols) {
    ulong bytes = 0;
#define ROW_BYTES(W) bytes = row_bytes<W>(cols)
    FOR_WEIGHT_TYPE(type, ROW_BYTES)
#undef ROW_BYTES
    return bytes;
}

// One element of a plain format; quantised formats have no ragged ends.
template <typename W, bool PLAIN>
struct Single {
    static float at(device const uchar*, uint) { return 0.0f; }
};
template <typename W>
struct Single<W, true> {
    static float at(device const uchar* row, uint col) { return W::one(row, col); }
};
template <typename W>
inline float weight_at(device const uchar* row, uint col) {
    return Single<W, W::BLOCK == 1>::at(row, col);
}

// Elements `col .. col + 8` of a row of `cols`, `col` a multiple of 8; zeros past the row's end.
template <typename W>
inline Eight decode8(device const uchar* row, uint col, uint cols) {
    if (col + 8 <= cols) {
        const Octet o = octet_at<W>(row, col);
        // An offset of 0 would turn -0 into 0.
        if (W::OFFSET == 0) return {o.lo * o.scale, o.hi * o.scale};
        return {o.lo * o.scale + o.offset, o.hi * o.scale + o.offset};
    }
    Eight v = {float4(0.0f), float4(0.0f)};
    for (uint i = 0; i < 4; i++) {
        if (col + i < cols) v.lo[i] = weight_at<W>(row, col + i);
        if (col + 4 + i < cols) v.hi[i] = weight_at<W>(row, col + 4 + i);
    }
    return v;
}
inline Eight decode8(uint type, device const uchar* row, uint col, uint cols) {
    Eight v = {float4(0.0f), float4(0.0f)};
#define DECODE8(W) v = decode8<W>(row, col, cols)
    FOR_WEIGHT_TYPE(type, DECODE8)
#undef DECODE8
    return v;
}

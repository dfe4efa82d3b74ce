// Keys and values as they lie in the cache: rows of `dim` elements, HEAD_DIM where nothing else is said,
// `[block][kv_head][slot]`.

constant uint KV_TYPE [[function_constant(0)]];
constant uint HEAD_DIM [[function_constant(1)]];

constant constexpr uint KV_F32 = 0;
constant constexpr uint KV_F16 = 1;
constant constexpr uint KV_BF16 = 2;
// 32 elements in 34 bytes: a half, then signed bytes. Blocks are aligned to 2.
constant constexpr uint KV_Q8_0 = 3;

// Tokens of a cache block.
constant constexpr uint BLOCK_TOKENS = 32;

inline uint kv_row_bytes(uint dim = HEAD_DIM) {
    if (KV_TYPE == KV_Q8_0) return dim / 32 * 34;
    return KV_TYPE == KV_F32 ? dim * 4 : dim * 2;
}

// First byte of a head's row of slot 0 of a block. Caches pass 4 GiB.
inline ulong kv_block_start(uint block, uint kv_head, uint kv_heads, uint dim = HEAD_DIM) {
    return (ulong(block) * kv_heads + kv_head) * (BLOCK_TOKENS * kv_row_bytes(dim));
}

// Where the row of this token and head lies in a cache.
inline ulong kv_row(
    device const uint2* rows, device const uint* blocks, uint token, uint head, uint kv_heads, uint dim = HEAD_DIM
) {
    const uint2 row = rows[token];
    const uint index = row.y - 1;
    const ulong block = kv_block_start(blocks[row.x + index / BLOCK_TOKENS], head, kv_heads, dim);
    return block + index % BLOCK_TOKENS * kv_row_bytes(dim);
}

// Elements `i .. i + 4` of a row; `i` is a multiple of 4, the row's length of 8.
inline float4 kv_load4(device const uchar* row, uint i) {
    if (KV_TYPE == KV_F32) return ((device const float4*)row)[i / 4];
    if (KV_TYPE == KV_F16) return float4(((device const half4*)row)[i / 4]);
    if (KV_TYPE == KV_BF16) return as_type<float4>(uint4(((device const ushort4*)row)[i / 4]) << 16);
    device const uchar* block = row + i / 32 * 34;
    const float d = float(*(device const half*)block);
    device const char2* q = (device const char2*)(block + 2 + i % 32);
    return d * float4(float2(q[0]), float2(q[1]));
}

// Elements `i .. i + 8` of a row; `i` and the row's length are multiples of 8.
inline void kv_load8(device const uchar* row, uint i, thread float4& a, thread float4& b) {
    if (KV_TYPE == KV_F16) {
        const uint4 v = ((device const uint4*)row)[i / 8];
        a = float4(as_type<half4>(v.xy));
        b = float4(as_type<half4>(v.zw));
        return;
    }
    a = kv_load4(row, i);
    b = kv_load4(row, i + 4);
}

// Element `i` of a row of any length.
inline float kv_load1(device const uchar* row, uint i) {
    if (KV_TYPE == KV_F32) return ((device const float*)row)[i];
    if (KV_TYPE == KV_F16) return float(((device const half*)row)[i]);
    if (KV_TYPE == KV_BF16) return as_type<float>(uint(((device const ushort*)row)[i]) << 16);
    device const uchar* block = row + i / 32 * 34;
    return float(*(device const half*)block) * float(((device const char*)(block + 2))[i % 32]);
}

// The nearest bfloat, ties to even. Written out, so that it is the same on every device.
inline ushort bf16_bits(float x) {
    const uint bits = as_type<uint>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return ushort((bits >> 16) | 0x40);
    return ushort((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// Stores element `i` of a row whose elements stand alone.
inline void kv_put(device uchar* row, uint i, float x) {
    if (KV_TYPE == KV_F32) ((device float*)row)[i] = x;
    else if (KV_TYPE == KV_F16) ((device half*)row)[i] = half(x);
    else ((device ushort*)row)[i] = bf16_bits(x);
}

// Stores element `32 * j + lane` of a row; all lanes of a simdgroup call it together, `x` is 0 past the row's end.
inline void kv_store(device uchar* row, uint j, uint lane, float x, uint dim = HEAD_DIM) {
    const uint i = 32 * j + lane;
    if (KV_TYPE == KV_Q8_0) {
        const float d = precise::divide(simd_max(fabs(x)), 127.0f);
        const float scale = d == 0.0f ? 0.0f : precise::divide(1.0f, d);
        device uchar* block = row + j * 34;
        if (lane == 0) *(device half*)block = half(d);
        block[2 + lane] = uchar(char(clamp(round(x * scale), -127.0f, 127.0f)));
        return;
    }
    if (i < dim) kv_put(row, i, x);
}

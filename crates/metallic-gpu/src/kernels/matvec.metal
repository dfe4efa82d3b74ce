// Up to three matrices times the vectors of tokens. A row of threadgroups has up to T tokens and reads weights once for
// all of them.
//
// A simdgroup has `blocks` times ROWS rows of one matrix, or of the gate and of the matrix it gates. A lane takes every
// 32nd piece of a row: two octets that share bytes. Every lane's part of every sum goes to threadgroup memory, and a
// barrier later each lane adds up the parts of one result: the order is the same for any number of tokens and rows.
// The norm's scale is a factor on the result, so its sum of squares is gathered along the way.

constant uint WEIGHT0 [[function_constant(0)]];
constant uint WEIGHT1 [[function_constant(1)]];
constant uint WEIGHT2 [[function_constant(2)]];
constant uint WITH_NORM [[function_constant(3)]];
constant uint WITH_BIAS [[function_constant(4)]];
constant uint WITH_RESIDUAL [[function_constant(5)]];
constant uint WITH_GATE [[function_constant(6)]];
constant uint GATE [[function_constant(7)]];

constant constexpr uint ROWS = 4;
// Floats from one result's parts to the next one's: 32 and what keeps lanes on banks of their own.
constant constexpr uint PITCH = 36;
// Squares are of x times this power of two: none overflows below 1e28, and none that an epsilon leaves visible vanishes.
constant constexpr float UNIT = 9.313225746154785e-10f;

struct Vectors {
    device const float* x;
    device const float* norm;
    uint tokens;
    bool squares;
};

inline float across(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

inline float4 four(device const float* p) {
    return float4(*(device const packed_float4*)p);
}

// This lane's parts of rows `row .. row + ROWS`, at `parts[(r * T + t) * PITCH]`, and of the squares at `squares[t * PITCH]`.
template <typename W, uint T>
void dots(
    constant MatvecParams& p, Vectors v, device const uchar* w, uint2 rows, uint lane, threadgroup float* parts,
    threadgroup float* squares
) {
    constexpr uint RUN = W::SPLIT / 8;
    device const uchar* at[ROWS];
#pragma unroll
    for (uint r = 0; r < ROWS; r++) at[r] = w + ulong(min(rows.x + r, rows.y - 1)) * row_bytes<W>(p.cols);
    device const float* x[T];
#pragma unroll
    for (uint t = 0; t < T; t++) x[t] = v.x + ulong(min(t, v.tokens - 1)) * p.cols;
    float sum[ROWS][T];
    float square[T];
#pragma unroll
    for (uint t = 0; t < T; t++) {
        square[t] = 0.0f;
#pragma unroll
        for (uint r = 0; r < ROWS; r++) sum[r][t] = 0.0f;
    }
    const uint pieces = p.cols / 16;
    for (uint piece = lane; piece < pieces; piece += SIMD) {
        for (uint half_piece = 0; half_piece < 2; half_piece++) {
            const uint col = piece / RUN * (2 * W::SPLIT) + piece % RUN * 8 + half_piece * W::SPLIT;
            float4 lo[T], hi[T];
            float total[T];
#pragma unroll
            for (uint t = 0; t < T; t++) {
                lo[t] = four(x[t] + col);
                hi[t] = four(x[t] + col + 4);
                if (WITH_NORM != 0) {
                    if (v.squares) {
                        const float4 a = lo[t] * UNIT, b = hi[t] * UNIT;
                        square[t] += across(a * a + b * b);
                    }
                    lo[t] *= four(v.norm + col);
                    hi[t] *= four(v.norm + col + 4);
                }
                total[t] = W::OFFSET == 0 ? 0.0f : across(lo[t] + hi[t]);
            }
#pragma unroll
            for (uint r = 0; r < ROWS; r++) {
                const Octet o = W::octet(at[r], col);
#pragma unroll
                for (uint t = 0; t < T; t++) {
                    sum[r][t] = fma(o.scale, across(fma(o.hi, hi[t], o.lo * lo[t])), sum[r][t]);
                    if (W::OFFSET != 0) sum[r][t] = fma(o.offset, total[t], sum[r][t]);
                }
            }
        }
    }
    if (W::BLOCK == 1) {
        for (uint col = pieces * 16 + lane; col < p.cols; col += SIMD) {
#pragma unroll
            for (uint t = 0; t < T; t++) {
                float value = x[t][col];
                if (WITH_NORM != 0) {
                    if (v.squares) square[t] += (value * UNIT) * (value * UNIT);
                    value *= v.norm[col];
                }
#pragma unroll
                for (uint r = 0; r < ROWS; r++) sum[r][t] = fma(weight_at<W>(at[r], col), value, sum[r][t]);
            }
        }
    }
#pragma unroll
    for (uint t = 0; t < T; t++) {
#pragma unroll
        for (uint r = 0; r < ROWS; r++) parts[(r * T + t) * PITCH + lane] = sum[r][t];
        if (v.squares) squares[t * PITCH + lane] = square[t];
    }
}

// The sum of all lanes' parts.
inline float gathered(threadgroup const float* parts) {
    threadgroup const float4* fours = (threadgroup const float4*)parts;
    float4 sum = fours[0];
#pragma unroll
    for (uint i = 1; i < SIMD / 4; i++) sum += fours[i];
    return across(sum);
}

inline uint results_of_token(constant MatvecParams& p) {
    return WITH_GATE != 0 ? p.rows0 : p.rows0 + p.rows1 + p.rows2;
}

struct Matrices {
    device const uchar* w0;
    device const uchar* w1;
    device const uchar* w2;
    device const float* bias0;
    device const float* bias1;
    device const float* bias2;
};

// The rows `at.x .. at.x + at.y` of a matrix of `at.z` rows, whose results are `rows` rows of T tokens each.
template <uint T>
void part_dots(
    constant MatvecParams& p, Vectors v, uint type, device const uchar* w, uint3 at, uint lane, threadgroup float* parts
) {
    threadgroup float* squares = parts + p.blocks * ROWS * T * PITCH;
    for (uint done = 0; done < at.y; done += ROWS) {
        v.squares = v.squares && done == 0;
        threadgroup float* to = parts + done * T * PITCH;
#define DOTS(W) dots<W, T>(p, v, w, uint2(at.x + done, at.z), lane, to, squares)
        FOR_WEIGHT_TYPE(type, DOTS)
#undef DOTS
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// What the norm multiplies the results of a token by.
template <uint T>
inline float norm_scale(constant MatvecParams& p, threadgroup const float* parts, uint t) {
    if (WITH_NORM == 0) return 1.0f;
    const float mean = gathered(parts + (p.blocks * ROWS * T + t) * PITCH) / float(p.cols);
    return UNIT * precise::rsqrt(mean + p.eps * (UNIT * UNIT));
}

// Rows of a matrix.
inline uint rows_of(constant MatvecParams& p, uint part) {
    return part == 0 ? p.rows0 : part == 1 ? p.rows1 : p.rows2;
}

template <uint T>
void matvec(
    constant MatvecParams& p, Vectors v, Matrices m, device const float* residual, device float* out,
    threadgroup float* parts, uint tile, uint lane
) {
    const uint tile_rows = p.blocks * ROWS;
    uint part = 0, first = 0;
    while (part < 2 && WITH_GATE == 0 && tile >= (rows_of(p, part) + tile_rows - 1) / tile_rows) {
        tile -= (rows_of(p, part) + tile_rows - 1) / tile_rows;
        first += rows_of(p, part);
        part++;
    }
    const uint rows = rows_of(p, part), row = tile * tile_rows;
    if (row >= rows) return;
    const uint count = min(tile_rows, rows - row);
    const uint3 at = uint3(row, count, rows);
    // What the gate lets through, [count, T], behind the parts.
    threadgroup float* gates = parts + (tile_rows + 1) * T * PITCH;
    v.squares = WITH_NORM != 0;
    if (WITH_GATE != 0) {
        part_dots<T>(p, v, WEIGHT0, m.w0, at, lane, parts);
        for (uint i = lane; i < count * T; i += SIMD) {
            float y = gathered(parts + i * PITCH) * norm_scale<T>(p, parts, i % T);
            if (WITH_BIAS != 0) y += m.bias0[row + i / T];
            gates[i] = activate(GATE, y);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        v.squares = false;
        part = 1;
    }
    const uint type = part == 0 ? WEIGHT0 : part == 1 ? WEIGHT1 : WEIGHT2;
    device const float* bias = part == 0 ? m.bias0 : part == 1 ? m.bias1 : m.bias2;
    part_dots<T>(p, v, type, part == 0 ? m.w0 : part == 1 ? m.w1 : m.w2, at, lane, parts);
    for (uint i = lane; i < count * T; i += SIMD) {
        const uint r = i / T, t = i % T;
        if (t >= v.tokens) continue;
        float y = gathered(parts + i * PITCH) * norm_scale<T>(p, parts, t);
        if (WITH_BIAS != 0) y += bias[row + r];
        if (WITH_GATE != 0) y *= gates[i];
        const ulong to = ulong(t) * results_of_token(p) + first + row + r;
        if (WITH_RESIDUAL != 0) y += residual[to];
        out[to] = y;
    }
}

// Floats of threadgroup memory of a simdgroup.
template <uint T>
inline uint parts_of_simd(constant MatvecParams& p) {
    return ((p.blocks * ROWS + 1) * PITCH + (WITH_GATE != 0 ? p.blocks * ROWS : 0)) * T;
}

#define MATVEC(T)                                                                                               \
    kernel void matvec_##T(                                                                                     \
        constant MatvecParams& p [[buffer(0)]], device const float* x [[buffer(1)]],                            \
        device const float* norm [[buffer(2)]], device const uchar* w0 [[buffer(3)]],                           \
        device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],                             \
        device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]],                       \
        device const float* bias2 [[buffer(8)]], device const float* residual [[buffer(9)]],                    \
        device float* out [[buffer(10)]], threadgroup float4* parts [[threadgroup(0)]],                         \
        uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],                  \
        uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]                 \
    ) {                                                                                                         \
        const uint token = group.y * T;                                                                         \
        const Vectors v = {x + ulong(token) * p.cols, norm, min(uint(T), p.tokens - token), false};             \
        const Matrices m = {w0, w1, w2, bias0, bias1, bias2};                                                   \
        const ulong to = ulong(token) * results_of_token(p);                                                    \
        threadgroup float* own = (threadgroup float*)parts + simd * parts_of_simd<T>(p);                        \
        device const float* added = WITH_RESIDUAL != 0 ? residual + to : residual;                              \
        matvec<T>(p, v, m, added, out + to, own, group.x * simds + simd, lane);                                 \
    }

MATVEC(1)
MATVEC(2)
MATVEC(4)
MATVEC(8)

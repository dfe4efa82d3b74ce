// Products of up to three matrices with the vectors of up to T tokens, for which the weights are read once.
//
// A simdgroup has `blocks` times ROWS rows of one matrix, or of the gate and of the matrix it gates. A lane takes every
// 32nd piece of a row: two octets that share bytes. Every lane's part of every sum goes to threadgroup memory, and a
// barrier later each lane adds up the parts of one result: the order is the same for any number of tokens and rows.
// The norm's scale is a factor on the result, so its sum of squares is gathered along the way.

constant constexpr uint ROWS = 4;
// Floats from one result's parts to the next one's: 32 and what keeps lanes on banks of their own.
constant constexpr uint PITCH = 36;

struct Vectors {
    device const float* x;
    device const float* norm;
    uint tokens;
    bool squares;
};

// Rows one after another. Past the end there is the last one again.
struct InOrder {
    uint end;

    uint row(uint slot) const {
        return min(slot, end - 1);
    }
};

inline float4 four(device const float* p) {
    return float4(*(device const packed_float4*)p);
}

// This lane's parts of the rows in the places `first .. first + ROWS`, at `parts[(r * T + t) * PITCH]`, and of the squares at
// `squares[t * PITCH]`.
template <typename W, uint T, typename Order>
void dots(
    uint cols, Vectors v, device const uchar* w, Order order, uint first, uint lane,
    threadgroup float* parts, threadgroup float* squares
) {
    constexpr uint RUN = W::SPLIT / 8;
    device const uchar* at[ROWS];
    UNROLL for (uint r = 0; r < ROWS; r++) at[r] = w + ulong(order.row(first + r)) * row_bytes<W>(cols);
    device const float* x[T];
    UNROLL for (uint t = 0; t < T; t++) x[t] = v.x + ulong(min(t, v.tokens - 1)) * cols;
    float sum[ROWS][T];
    float square[T];
    UNROLL for (uint t = 0; t < T; t++) {
        square[t] = 0.0f;
        UNROLL for (uint r = 0; r < ROWS; r++) sum[r][t] = 0.0f;
    }
    const uint pieces = cols / 16;
    for (uint piece = lane; piece < pieces; piece += SIMD) {
        for (uint half_piece = 0; half_piece < 2; half_piece++) {
            const uint col = piece / RUN * (2 * W::SPLIT) + piece % RUN * 8 + half_piece * W::SPLIT;
            float4 lo[T], hi[T];
            float total[T];
            UNROLL for (uint t = 0; t < T; t++) {
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
            UNROLL for (uint r = 0; r < ROWS; r++) {
                const Octet o = octet_at<W>(at[r], col);
                UNROLL for (uint t = 0; t < T; t++) {
                    sum[r][t] = fma(o.scale, across(fma(o.hi, hi[t], o.lo * lo[t])), sum[r][t]);
                    if (W::OFFSET != 0) sum[r][t] = fma(o.offset, total[t], sum[r][t]);
                }
            }
        }
    }
    if (W::BLOCK == 1) {
        for (uint col = pieces * 16 + lane; col < cols; col += SIMD) {
            UNROLL for (uint t = 0; t < T; t++) {
                float value = x[t][col];
                if (WITH_NORM != 0) {
                    if (v.squares) square[t] += (value * UNIT) * (value * UNIT);
                    value *= v.norm[col];
                }
                UNROLL for (uint r = 0; r < ROWS; r++) sum[r][t] = fma(weight_at<W>(at[r], col), value, sum[r][t]);
            }
        }
    }
    UNROLL for (uint t = 0; t < T; t++) {
        UNROLL for (uint r = 0; r < ROWS; r++) parts[(r * T + t) * PITCH + lane] = sum[r][t];
        if (v.squares) squares[t * PITCH + lane] = square[t];
    }
}

// The sum of all lanes' parts.
inline float gathered(threadgroup const float* parts) {
    threadgroup const float4* fours = (threadgroup const float4*)parts;
    float4 sum = fours[0];
    UNROLL for (uint i = 1; i < SIMD / 4; i++) sum += fours[i];
    return across(sum);
}

// The parts of a simdgroup's matrix: `tile.places.y` results of T tokens each.
template <uint T, typename Order>
void tile_dots(
    constant ProjectParams& p, Vectors v, Matrices m, Order order, Tile tile, uint lane, threadgroup float* parts
) {
    device const uchar* w = m.weight_of(tile.part);
    threadgroup float* squares = parts + p.blocks * ROWS * T * PITCH;
    for (uint done = 0; done < tile.places.y; done += ROWS) {
        v.squares = v.squares && done == 0;
        threadgroup float* to = parts + done * T * PITCH;
#define DOTS(W) dots<W, T>(p.cols, v, w, order, tile.places.x + done, lane, to, squares)
        FOR_WEIGHT_TYPE(m.type_of(tile.part), DOTS)
#undef DOTS
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// What the norm multiplies the results of a token by.
template <uint T>
inline float norm_scale(constant ProjectParams& p, threadgroup const float* parts, uint t) {
    if (WITH_NORM == 0) return 1.0f;
    const float mean = gathered(parts + (p.blocks * ROWS * T + t) * PITCH) / float(p.cols);
    return UNIT * precise::rsqrt(mean + p.eps * (UNIT * UNIT));
}

// Floats of threadgroup memory of a simdgroup's parts.
template <uint T>
inline uint parts_of_simd(constant ProjectParams& p) {
    return (p.blocks * ROWS + 1) * PITCH * T;
}

// Up to three matrices of weights times the rows of many tokens, by the tensor operations of Metal 4.
//
// `tensor_vectors` leaves the tokens as halfs, row by row, with zeros up to whole tiles. A threadgroup of `tensor_matmul` has
// TILE_TOKENS tokens and TILE_ROWS rows of one matrix, or of a gate and of what it gates; weights are decoded into threadgroup memory
// a run of columns at a time, tokens are read where they lie. All tiles are whole: nothing depends on what the operation makes of edges.

constant constexpr uint TILE_TOKENS = 64, TILE_ROWS = 64, TILE_THREADS = 128;
// Of a row of a tile of weights.
constant constexpr uint RUN_BYTES = 128;
// Columns of a token are a multiple of these.
constant constexpr uint RUN = RUN_BYTES / sizeof(half);

// What weights are multiplied as: halfs hold all but those that are wider, or have other exponents.
template <typename W>
struct TileOf {
    typedef half type;
};
template <>
struct TileOf<WeightF32> {
    typedef float type;
};
template <>
struct TileOf<WeightBF16> {
    typedef bfloat type;
};

// Columns in memory for each token.
inline uint pitch_of(constant ProjectParams& p) {
    return (p.cols + RUN - 1) / RUN * RUN;
}

kernel void tensor_vectors(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device half* vectors [[buffer(3)]], device float* scales [[buffer(4)]], uint token [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]
) {
    threadgroup float scratch[32];
    const bool live = token < p.tokens;
    device const float* own = x + ulong(min(token, p.tokens - 1)) * p.cols;
    float square = 0.0f, top = 0.0f;
    for (uint i = tid; i < p.cols; i += threads) {
        float v = own[i];
        if (WITH_NORM != 0) {
            square += (v * UNIT) * (v * UNIT);
            v *= norm[i];
        }
        top = max(fabs(v), top);
    }
    float scale = 1.0f;
    if (WITH_NORM != 0) {
        square = group_sum(square, scratch, lane, simd, simds);
        scale = UNIT * precise::rsqrt(square / float(p.cols) + p.eps * (UNIT * UNIT));
    }
    const HalfScale half_by = half_scale(group_max(top, scratch, lane, simd, simds));
    if (tid == 0) scales[token] = live ? half_by.back * scale : 0.0f;
    const uint pitch = pitch_of(p);
    for (uint i = tid; i < pitch; i += threads) {
        float v = live && i < p.cols ? own[i] : 0.0f;
        if (WITH_NORM != 0 && i < p.cols) v *= norm[i];
        vectors[ulong(token) * pitch + i] = half(v * half_by.by);
    }
}

// A run of columns of the rows of a tile; zeros past the last row and the last column.
struct Run {
    uint row, rows, col, cols;
};

template <typename W, typename T>
void load_run(threadgroup T* to, device const uchar* w, Run run, uint tid) {
    constexpr uint EIGHTS = RUN_BYTES / sizeof(T) / 8;
    for (uint i = tid; i < TILE_ROWS * EIGHTS; i += TILE_THREADS) {
        const uint row = run.row + i / EIGHTS, col = run.col + i % EIGHTS * 8;
        Eight v = {float4(0.0f), float4(0.0f)};
        if (row < run.rows && col < run.cols) v = decode8<W>(w + row * row_bytes<W>(run.cols), col, run.cols);
        threadgroup vec<T, 4>* fours = (threadgroup vec<T, 4>*)to + i * 2;
        fours[0] = vec<T, 4>(v.lo);
        fours[1] = vec<T, 4>(v.hi);
    }
}
template <typename T>
void load_run(threadgroup T* to, uint type, device const uchar* w, Run run, uint tid) {
#define LOAD(W) if constexpr (is_same_v<typename TileOf<W>::type, T>) load_run<W, T>(to, w, run, tid)
    FOR_WEIGHT_TYPE(type, LOAD)
#undef LOAD
}

// What is multiplied, and where the results go.
struct Operands {
    Matrices m;
    device half* vectors;
    device const float* scales;
    device const float* residual;
    device float* out;

    template <typename T>
    METAL_FUNC void multiply(constant ProjectParams& p, Tile tile, uint token, threadgroup T* weights, uint tid) const {
        constexpr uint DEPTH = RUN_BYTES / sizeof(T);
        constexpr auto shape = matmul2d_descriptor(
            TILE_TOKENS, TILE_ROWS, DEPTH, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
        matmul2d<shape, execution_simdgroups<TILE_THREADS / SIMD>> op;
        auto one = op.template get_destination_cooperative_tensor<DeviceMatrix<half>, GroupMatrix<T>, float>();
        auto two = op.template get_destination_cooperative_tensor<DeviceMatrix<half>, GroupMatrix<T>, float>();
        UNROLL for (ushort i = 0; i < one.get_capacity(); i++) {
            if (one.is_valid_element(i)) one[i] = two[i] = 0.0f;
        }
        threadgroup T* gated = weights + TILE_ROWS * DEPTH;
        GroupMatrix<T> first(weights, dextents<int, 2>(DEPTH, TILE_ROWS)), second(gated, dextents<int, 2>(DEPTH, TILE_ROWS));
        const uint pitch = pitch_of(p);
        for (uint col = 0; col < p.cols; col += DEPTH) {
            const Run run = {tile.places.x, rows_of(p, tile.part), col, p.cols};
            load_run<T>(weights, m.type_of(tile.part), m.weight_of(tile.part), run, tid);
            if (WITH_GATE != 0) load_run<T>(gated, WEIGHT1, m.w1, run, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            DeviceMatrix<half> tokens(
                vectors + ulong(token) * pitch + col, dextents<int, 2>(DEPTH, TILE_TOKENS), array<int, 2>{1, int(pitch)});
            op.run(tokens, first, one);
            if (WITH_GATE != 0) op.run(tokens, second, two);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        const uint width = WITH_GATE != 0 ? p.rows0 : p.rows0 + p.rows1 + p.rows2;
        device const float* bias = m.bias_of(tile.part);
        UNROLL for (ushort i = 0; i < one.get_capacity(); i++) {
            if (!one.is_valid_element(i)) continue;
            const auto at = one.get_multidimensional_index(i);
            const uint r = uint(at[0]), t = token + uint(at[1]), n = tile.places.x + r;
            if (r >= tile.places.y || t >= p.tokens) continue;
            const ulong to = ulong(t) * width + tile.before + n;
            float y = one[i] * scales[t];
            if (WITH_BIAS != 0) y += bias[n];
            if (WITH_GATE != 0) {
                float z = two[i] * scales[t];
                if (WITH_BIAS != 0) z += m.bias1[n];
                y = activate(GATE, y) * z;
            }
            if (WITH_RESIDUAL != 0) y += residual[to];
            out[to] = y;
        }
    }
};

[[max_total_threads_per_threadgroup(128)]]
kernel void tensor_matmul(
    constant ProjectParams& p [[buffer(0)]], device const half* vectors [[buffer(1)]], device const float* scales [[buffer(2)]],
    device const uchar* w0 [[buffer(3)]], device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],
    device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]], device const float* bias2 [[buffer(8)]],
    device const float* residual [[buffer(9)]], device float* out [[buffer(10)]], threadgroup uint4* memory [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]
) {
    const Matrices m = {w0, w1, w2, bias0, bias1, bias2};
    // The operation takes no operands of const elements, and writes to none of them.
    const Operands all = {m, (device half*)vectors, scales, residual, out};
    // Tokens go first: threadgroups beside each other share weights.
    const uint token = group.x * TILE_TOKENS;
    const Tile tile = tile_of(p, group.y, TILE_ROWS, WITH_GATE != 0 ? 1 : 3);
    uint bytes = 0;
    bool brain = false;
#define TILE_KIND(W) bytes = sizeof(typename TileOf<W>::type), brain = is_same_v<typename TileOf<W>::type, bfloat>
    FOR_WEIGHT_TYPE(m.type_of(tile.part), TILE_KIND)
#undef TILE_KIND
    if (bytes == sizeof(float)) {
        all.multiply(p, tile, token, (threadgroup float*)memory, tid);
    } else if (brain) {
        all.multiply(p, tile, token, (threadgroup bfloat*)memory, tid);
    } else {
        all.multiply(p, tile, token, (threadgroup half*)memory, tid);
    }
}

// What a device reaches at best: these read, copy or multiply, and do nothing else.

// Loads that a thread has under way.
constant constexpr uint READS = 8;
constant constexpr uint COPIES = 4;
// Blocks of either side of a product; all pairs of them are multiplied.
constant constexpr uint BLOCKS = 4;

// The sum of all words of x, modulo 2^32: a part of it for each simdgroup.
kernel void peak_read(
    constant PeakMemoryParams& p [[buffer(0)]], device const uint4* x [[buffer(1)]], device uint* sums [[buffer(2)]],
    uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]
) {
    uint4 sum = 0;
    uint at = i;
    for (; at + (READS - 1) * p.threads < p.vectors; at += READS * p.threads) {
        uint4 words[READS];
        UNROLL for (uint k = 0; k < READS; k++) words[k] = streamed(x + at + k * p.threads);
        UNROLL for (uint k = 0; k < READS; k++) sum += words[k];
    }
    for (; at < p.vectors; at += p.threads) sum += x[at];
    const uint all = simd_sum((sum.x + sum.y) + (sum.z + sum.w));
    if (lane == 0) sums[i / SIMD] = all;
}

kernel void peak_copy(
    constant PeakMemoryParams& p [[buffer(0)]], device const uint4* from [[buffer(1)]], device uint4* to [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    uint at = i;
    for (; at + (COPIES - 1) * p.threads < p.vectors; at += COPIES * p.threads) {
        uint4 words[COPIES];
        UNROLL for (uint k = 0; k < COPIES; k++) words[k] = streamed(from + at + k * p.threads);
        UNROLL for (uint k = 0; k < COPIES; k++) to[at + k * p.threads] = words[k];
    }
    for (; at < p.vectors; at += p.threads) to[at] = from[at];
}

// All pairs of blocks [16, 16] and [16, 8] of halfs, as the lanes of matrix units have them, multiplied and added up again and
// again: for each simdgroup the sum of all results.
kernel void peak_units(
    constant PeakProductParams& p [[buffer(0)]], device const uint4* left [[buffer(1)]], device const uint2* right [[buffer(2)]],
    device float* sums [[buffer(3)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]
) {
    uint4 a[BLOCKS];
    uint2 b[BLOCKS];
    float4 c[BLOCKS][BLOCKS];
    UNROLL for (uint j = 0; j < BLOCKS; j++) {
        a[j] = left[j * SIMD + lane];
        b[j] = right[j * SIMD + lane];
        UNROLL for (uint k = 0; k < BLOCKS; k++) c[j][k] = 0.0f;
    }
    ROLLED for (uint round = 0; round < p.rounds; round++) {
        UNROLL for (uint j = 0; j < BLOCKS; j++) {
            UNROLL for (uint k = 0; k < BLOCKS; k++) c[j][k] = unit_product<half>(a[j], b[k], c[j][k], lane);
        }
    }
    float sum = 0.0f;
    UNROLL for (uint j = 0; j < BLOCKS; j++) {
        UNROLL for (uint k = 0; k < BLOCKS; k++) sum += across(c[j][k]);
    }
    sum = simd_sum(sum);
    if (lane == 0) sums[i / SIMD] = sum;
}

// The same with matrices of simdgroups, blocks of [8, 8]: for each simdgroup all results, [BLOCKS, BLOCKS, 8, 8].
kernel void peak_matrices(
    constant PeakProductParams& p [[buffer(0)]], device const half* left [[buffer(1)]], device const half* right [[buffer(2)]],
    device float* out [[buffer(3)]], uint i [[thread_position_in_grid]]
) {
    simdgroup_half8x8 a[BLOCKS], b[BLOCKS];
    simdgroup_float8x8 c[BLOCKS][BLOCKS];
    UNROLL for (uint j = 0; j < BLOCKS; j++) {
        simdgroup_load(a[j], left + j * 64, 8);
        simdgroup_load(b[j], right + j * 64, 8);
        UNROLL for (uint k = 0; k < BLOCKS; k++) c[j][k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    ROLLED for (uint round = 0; round < p.rounds; round++) {
        UNROLL for (uint j = 0; j < BLOCKS; j++) {
            UNROLL for (uint k = 0; k < BLOCKS; k++) simdgroup_multiply_accumulate(c[j][k], a[j], b[k], c[j][k]);
        }
    }
    UNROLL for (uint j = 0; j < BLOCKS; j++) {
        UNROLL for (uint k = 0; k < BLOCKS; k++) simdgroup_store(c[j][k], out + ((i / SIMD * BLOCKS + j) * BLOCKS + k) * 64, 8);
    }
}

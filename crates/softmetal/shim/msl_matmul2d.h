// mpp::tensor_ops::matmul2d: products of matrices by all threads of a scope, of half, bfloat and float with sums in float.
//
// On a CPU each thread computes the elements it holds, and which these are is drawn by the seed of the dispatch: a kernel that takes
// a layout for granted gives other results under another seed, and so does one that forgets that not every element it has room for
// is one. The operation is collective: threads meet, as at a barrier that orders no memory, and who does not come is reported.
// On an NVIDIA GPU elements lie as mma.m16n8k16 leaves them.
#pragma once
#include "msl_tensor.h"

namespace mpp {
namespace tensor_ops {
using namespace metal;

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;

    // A k that is not positive is that of the operands.
    MSL_FN constexpr matmul2d_descriptor(int m_, int n_, int k_ = (int)dynamic_extent, bool left = false, bool right = false,
                                         bool relaxed = false, mode mode_ = mode::multiply)
        : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(mode_) {}
    // As a number: C++17 takes no other values as template arguments.
    MSL_FN constexpr operator ulong() const {
        return (ulong)m | (ulong)n << 16 | (ulong)(k > 0 ? k : 0) << 32 | (ulong)transpose_left << 48 | (ulong)transpose_right << 49
            | (ulong)relaxed_precision << 50 | (ulong)(matmul_mode == mode::multiply_accumulate) << 51;
    }
    static MSL_FN constexpr matmul2d_descriptor of(ulong n) {
        return {(int)(n & 0xffff), (int)(n >> 16 & 0xffff), (int)(n >> 32 & 0xffff), (bool)(n >> 48 & 1), (bool)(n >> 49 & 1),
                (bool)(n >> 50 & 1), (n >> 51 & 1) ? mode::multiply_accumulate : mode::multiply};
    }
};

namespace matmul2d_impl {

template <class S> struct scope_of;
template <size_t N> struct scope_of<execution_simdgroups<N>> { static constexpr uint simdgroups = N, threads = 32 * N; };
template <> struct scope_of<execution_thread> { static constexpr uint simdgroups = 0, threads = 1; };

#if defined(MSL_LINT)

template <uint M, uint N, class S> struct spread {
    enum : uint { capacity = M * N / scope_of<S>::threads };
    bool has(uint i) const;
    uint row(uint i) const;
    uint column(uint i) const;
};

#elif defined(__NVPTX__)

template <uint M, uint N, class S> struct spread {
    static constexpr uint threads = scope_of<S>::threads, simdgroups = threads / 32;
    // Simdgroups side by side in both directions, each with blocks of 16 by 8.
    static constexpr uint down = simdgroups % 2 == 0 && M % 32 == 0 ? 2 : 1, across = simdgroups / down;
    static constexpr bool by_blocks = across != 0 && M % (16 * down) == 0 && N % (8 * (across ? across : 1)) == 0;
    static constexpr uint rows = M / down, columns = across ? N / across : N;
    static constexpr uint blocks_across = columns / 8, blocks_down = rows / 16;
    static constexpr uint capacity = by_blocks ? rows * columns / 32 : (M * N + threads - 1) / threads;

    uint own, first_row, first_column;
    MSL_FN spread() {
        const uint nx = __nvvm_read_ptx_sreg_ntid_x(), ny = __nvvm_read_ptx_sreg_ntid_y();
        own = (__nvvm_read_ptx_sreg_tid_z() * ny + __nvvm_read_ptx_sreg_tid_y()) * nx + __nvvm_read_ptx_sreg_tid_x();
        own = simdgroups == 0 ? 0 : simdgroups == 1 ? own % 32 : own;
        if (by_blocks) {
            const uint group = own / 32, lane = own % 32;
            first_row = group / across * rows + lane / 4;
            first_column = group % across * columns + lane % 4 * 2;
        }
    }
    MSL_FN bool has(uint i) const { return by_blocks || own + i * threads < M * N; }
    MSL_FN uint row(uint i) const { return by_blocks ? first_row + i / 4 / blocks_across * 16 + i % 4 / 2 * 8 : (own + i * threads) / N; }
    MSL_FN uint column(uint i) const { return by_blocks ? first_column + i / 4 % blocks_across * 8 + i % 2 : (own + i * threads) % N; }
};

#else

constexpr MSL_FN uint divisor(uint a, uint b) {
    while (b != 0) {
        const uint rest = a % b;
        a = b, b = rest;
    }
    return a;
}

// Places 0 to `all` in strides that meet each of them once; those past the matrix hold nothing.
template <uint M, uint N, class S> struct spread {
    static constexpr uint threads = scope_of<S>::threads;
    static constexpr uint capacity = (M * N + threads - 1) / threads + (threads > 1 ? 1 : 0), all = capacity * threads;

    uint first, step;
    MSL_FN spread() {
        msl_scope at;
        msl_rt_scope(&at);
        const uint own = threads == 1 ? 0 : threads == 32 ? at.lane : at.simdgroup * 32 + at.lane;
        ulong drawn = at.seed;
        step = 1;
        if (drawn != 0 && all > 1) {
            drawn = (drawn ^ all) * 0x9e3779b97f4a7c15ul;
            drawn ^= drawn >> 29;
            for (step = 1 + (uint)(drawn % (all - 1)); divisor(step, all) != 1; step = step % (all - 1) + 1) {}
        }
        first = (uint)(((ulong)own * capacity * step + (drawn >> 20)) % all);
        // A thread that is not of the scope holds nothing.
        if (own >= threads) first = M * N, step = 0;
    }
    MSL_FN uint linear(uint i) const { return (uint)((first + (ulong)i * step) % all); }
    MSL_FN bool has(uint i) const { return linear(i) < M * N; }
    MSL_FN uint row(uint i) const { return linear(i) / N; }
    MSL_FN uint column(uint i) const { return linear(i) % N; }
};

#endif

#if !defined(MSL_LINT)

// An operand, whichever way it lies: `outer` rows or columns of products of `inner` terms. What is not there is zero.
template <class T> struct operand {
    const T* first;
    long outer_step, inner_step;
    long outer, inner;

    template <class V> MSL_FN operand(const V& from, int outer_axis)
        : first(from.first), outer_step(from.get_stride(outer_axis)), inner_step(from.get_stride(1 - outer_axis)),
          outer(from.get_extent(outer_axis)), inner(from.get_extent(1 - outer_axis)) {}

    MSL_FN T at(long o, long k) const { return o < outer && k < inner ? first[o * outer_step + k * inner_step] : T(0); }

    // Terms k to k + n of a row, as floats.
    template <int MOST> MSL_FN void terms(float* to, long o, long k, long n) const {
        const long there = o < outer && k < inner ? (inner - k < n ? inner - k : n) : 0;
        T own[MOST];
        const T* from = first + o * outer_step + k * inner_step;
        if (inner_step == 1 && there == MOST) {
            __builtin_memcpy(own, from, sizeof own);
        } else {
            for (long i = 0; i < there; i++) own[i] = from[i * inner_step];
        }
        for (long i = there; i < MOST; i++) own[i] = T(0);
        for (int i = 0; i < MOST; i++) to[i] = (float)own[i];
    }
};

// Eight sums beside each other, which a processor adds up at once.
template <int N> MSL_FN float dot(const float* a, const float* b) {
    float sums[8] = {};
    for (int i = 0; i < N; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += a[i + j] * b[i + j];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

template <bool ADD, class A, class B, class C> MSL_FN void by_elements(const operand<A>& a, const operand<B>& b, C& c, long depth) {
    constexpr int RUN = 32;
    float left[RUN], right[RUN];
    for (long k = 0; k < depth; k += RUN) {
        const long n = depth - k < RUN ? depth - k : RUN;
        long row = -1;
        for (uint i = 0; i < C::get_capacity(); i++) {
            if (!c.place.has(i)) continue;
            if ((long)c.place.row(i) != row) a.template terms<RUN>(left, row = c.place.row(i), k, n);
            b.template terms<RUN>(right, c.place.column(i), k, n);
            const float sum = ADD || k > 0 ? (float)c.elements[i] : 0.0f;
            c.elements[i] = (typename C::element_type)(sum + dot<RUN>(left, right));
        }
    }
}

#endif

#if defined(SOFTMETAL_MMA)

// Two neighbouring terms of a row in a word.
template <class T> MSL_FN uint pair(const operand<T>& from, long o, long k, bool whole) {
    if (whole) return *(const uint*)(from.first + o * from.outer_step + k);
    const T two[2] = {from.at(o, k), from.at(o, k + 1)};
    return (uint)as_type<ushort>(two[0]) | (uint)as_type<ushort>(two[1]) << 16;
}
template <class T> MSL_FN bool in_words(const operand<T>& from, long outer, long depth) {
    return from.inner_step == 1 && from.outer_step % 2 == 0 && ((ulong)from.first & 3) == 0 && from.outer >= outer
        && from.inner >= (depth + 15) / 16 * 16;
}

template <bool ADD, int M, int N, class T, class C>
MSL_FN void by_units(const operand<T>& a, const operand<T>& b, C& c, long depth) {
    typedef typename C::layout L;
    const bool whole_a = in_words(a, M, depth), whole_b = in_words(b, N, depth);
    const long row = c.place.first_row, column = c.place.first_column;
    // Of a column of blocks a lane loads column lane / 4, of its results it has column lane % 4 * 2.
    const uint lane = c.place.own % 32;
    const long loads = column - lane % 4 * 2 + lane / 4;
    if (!ADD) {
#pragma unroll
        for (uint i = 0; i < L::capacity; i++) c.elements[i] = 0;
    }
    for (long k = lane % 4 * 2; k < depth; k += 16) {
        uint2 right[L::blocks_across];
#pragma unroll
        for (uint j = 0; j < L::blocks_across; j++)
            right[j] = uint2(pair(b, loads + j * 8, k, whole_b), pair(b, loads + j * 8, k + 8, whole_b));
#pragma unroll
        for (uint i = 0; i < L::blocks_down; i++) {
            const long r = row + i * 16;
            const uint4 left = uint4(pair(a, r, k, whole_a), pair(a, r + 8, k, whole_a), pair(a, r, k + 8, whole_a),
                                     pair(a, r + 8, k + 8, whole_a));
#pragma unroll
            for (uint j = 0; j < L::blocks_across; j++) {
                float* to = c.elements + (i * L::blocks_across + j) * 4;
                const float4 sum = softmetal_mma<T>(left, right[j], float4(to[0], to[1], to[2], to[3]));
                to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
            }
        }
    }
}

#endif

template <class T> struct is_cooperative : false_type {};
template <class E, class X, class L> struct is_cooperative<cooperative_tensor<E, X, L>> : true_type {};

} // namespace matmul2d_impl

template <ulong CODE, class Scope, class... Args> struct matmul2d {
    static constexpr matmul2d_descriptor descriptor = matmul2d_descriptor::of(CODE);
    typedef Scope scope;
    static_assert(descriptor.m > 0 && descriptor.n > 0, "rows and columns of the product are constants");

    template <class L, class R, class E, class C>
    using cooperative_tensor_destination_t =
        cooperative_tensor<E, dextents<C, 2>, matmul2d_impl::spread<(uint)descriptor.m, (uint)descriptor.n, Scope>>;

    template <class L, class R, class E, class C = int>
    MSL_FN cooperative_tensor_destination_t<L, R, E, C> get_destination_cooperative_tensor() const {
        return {};
    }

#if defined(MSL_LINT)
    template <class L, class R, class D> void run(L& left, R& right, D& destination) const;
#else
    template <class L, class R, class D> MSL_FN void run(L& left, R& right, D& destination, MSL_AT) const {
        typedef remove_cv_t<typename L::element_type> A;
        typedef remove_cv_t<typename R::element_type> B;
        static_assert(!is_const<typename L::element_type>::value && !is_const<typename R::element_type>::value,
                      "Apple's matmul2d takes no operands of const elements");
        static_assert(is_floating_point_v<A> && is_floating_point_v<B>, "operands of half, bfloat or float");
        const matmul2d_impl::operand<A> a(left, descriptor.transpose_left ? 0 : 1);
        const matmul2d_impl::operand<B> b(right, descriptor.transpose_right ? 1 : 0);
        const long depth = descriptor.k > 0 ? descriptor.k : a.inner;
        constexpr bool ADD = descriptor.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
#if !defined(__NVPTX__)
        // Before the work or after it: kernels may count on neither.
        msl_scope at;
        msl_rt_scope(&at);
        if (at.seed % 2 == 0) msl_rt_collective(matmul2d_impl::scope_of<Scope>::simdgroups, file, line);
#endif
        if constexpr (matmul2d_impl::is_cooperative<D>::value) {
            multiply<ADD>(a, b, destination, depth);
        } else {
            typedef remove_cv_t<typename D::element_type> E;
            auto own = get_destination_cooperative_tensor<L, R, E>();
            if (ADD) own.load(destination);
            multiply<ADD>(a, b, own, depth);
            own.store(destination);
        }
#if !defined(__NVPTX__)
        if (at.seed % 2 == 1) msl_rt_collective(matmul2d_impl::scope_of<Scope>::simdgroups, file, line);
#endif
    }

private:
    template <bool ADD, class A, class B, class C>
    static MSL_FN void multiply(const matmul2d_impl::operand<A>& a, const matmul2d_impl::operand<B>& b, C& c, long depth) {
#if defined(SOFTMETAL_MMA)
        if constexpr (C::layout::by_blocks && is_same_v<A, B> && sizeof(A) == 2 && is_same_v<typename C::element_type, float>) {
            matmul2d_impl::by_units<ADD, descriptor.m, descriptor.n>(a, b, c, depth);
            return;
        }
#endif
        matmul2d_impl::by_elements<ADD>(a, b, c, depth);
    }
#endif
};

} // namespace tensor_ops
} // namespace mpp

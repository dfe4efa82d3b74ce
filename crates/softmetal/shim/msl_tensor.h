// Tensors of Metal 4: views of memory with extents and strides, and tensors that the threads of a scope hold together.
//
// Axis 0 is the innermost one: a row-major matrix [rows, columns] has the extents (columns, rows). Tensors that the host binds
// (tensor_handle) are not there: kernels make theirs of pointers (tensor_inline).
#pragma once
#include "msl_sync.h"

namespace metal {

constexpr size_t dynamic_extent = ~(size_t)0;

template <class I, size_t... E> struct extents {
    typedef I index_type;
    static constexpr size_t rank() { return sizeof...(E); }
    static constexpr size_t rank_dynamic() { return (0 + ... + (size_t)(E == dynamic_extent)); }
    static constexpr size_t static_extent(size_t axis) {
        constexpr size_t all[] = {E...};
        return all[axis];
    }
    I sizes[sizeof...(E)];
    MSL_FN constexpr extents() : sizes{(E == dynamic_extent ? I(0) : I(E))...} {}
    // All of them, those that are constants too.
    template <class... A, class = enable_if_t<sizeof...(A) == sizeof...(E) && (is_integral<A>::value && ...)>>
    MSL_FN constexpr extents(A... all) : sizes{I(all)...} {}
    MSL_FN constexpr I extent(size_t axis) const { return sizes[axis]; }
};

template <class I, size_t R, size_t... E> struct dextents_of {
    typedef typename dextents_of<I, R - 1, dynamic_extent, E...>::type type;
};
template <class I, size_t... E> struct dextents_of<I, 0, E...> { typedef extents<I, E...> type; };
template <class I, size_t R> using dextents = typename dextents_of<I, R>::type;

struct tensor_handle {};
struct tensor_offset {};
struct tensor_inline {};

template <class E, class X, class D = tensor_handle, class... Tags> struct tensor;

template <class E, class X, class... Tags> struct tensor<E, X, tensor_inline, Tags...> {
    typedef E element_type;
    typedef X extents_type;
    typedef typename X::index_type index_type;
    static constexpr size_t get_rank() { return X::rank(); }

    E* first;
    X sizes;
    array<index_type, X::rank()> steps;

    // Packed.
    MSL_FN tensor(E* p, const X& x) : first(p), sizes(x) {
        index_type step = 1;
        for (size_t axis = 0; axis < X::rank(); axis++) steps.e[axis] = step, step *= x.sizes[axis];
    }
    MSL_FN tensor(E* p, const X& x, const array<index_type, X::rank()>& strides) : first(p), sizes(x), steps(strides) {}

    MSL_FN index_type get_extent(size_t axis) const { return sizes.sizes[axis]; }
    MSL_FN index_type get_stride(size_t axis) const { return steps.e[axis]; }
    MSL_FN const X& get_extents() const { return sizes; }

    // What begins at this element. Without sizes it ends where the tensor does; a size that is a constant is taken at its word.
    template <size_t... S, class... A> MSL_FN auto slice(A... from) const {
        static_assert(sizeof...(A) == X::rank(), "a slice begins at one index for each axis");
        static_assert(sizeof...(S) == 0 || sizeof...(S) == X::rank(), "a slice has one size for each axis, or none");
        typedef conditional_t<sizeof...(S) == 0, dextents<index_type, X::rank()>, extents<index_type, S...>> part;
        const index_type begin[] = {index_type(from)...};
        part sizes_of_part;
        E* p = first;
        for (size_t axis = 0; axis < X::rank(); axis++) {
            p += (ptrdiff_t)begin[axis] * steps.e[axis];
            if (part::static_extent(axis) == dynamic_extent) {
                const index_type left = sizes.sizes[axis] - begin[axis];
                sizes_of_part.sizes[axis] = left > 0 ? left : 0;
            }
        }
        return tensor<E, part, tensor_inline>(p, sizes_of_part, steps);
    }
    template <size_t... S, class... A> MSL_FN auto static_slice(A... from) const { return slice<S...>(from...); }
};
template <class E, class X> tensor(E*, X) -> tensor<E, X, tensor_inline>;
template <class E, class X, class I, size_t R> tensor(E*, X, array<I, R>) -> tensor<E, X, tensor_inline>;

// Who works together.
template <size_t N> struct execution_simdgroups {
    static_assert(N != 0, "a scope has simdgroups");
    static constexpr size_t static_size = N;
    static constexpr uint size() { return N; }
};
template <size_t N> struct execution_threads {
    static_assert(N == 1, "a scope of threads has one");
    static constexpr size_t static_size = N;
    static constexpr uint size() { return N; }
};
typedef execution_simdgroups<1> execution_simdgroup;
typedef execution_threads<1> execution_thread;

// A tensor whose elements the threads of a scope hold. Which thread has which is the layout's business alone: kernels ask.
template <class E, class X, class L> struct cooperative_tensor {
    typedef E element_type;
    typedef X extents_type;
    typedef typename X::index_type index_type;
    typedef L layout;
    static_assert(X::rank() == 2, "a matrix");

    L place;
    E elements[L::capacity];

    MSL_FN cooperative_tensor() {
#if !defined(__NVPTX__)
        // What nobody wrote is no number.
        for (uint i = 0; i < L::capacity; i++) elements[i] = E(NAN);
#endif
    }
    static constexpr uint16_t get_capacity() { return L::capacity; }
    MSL_FN bool is_valid_element(uint i) const { return place.has(i); }
    MSL_FN bool get_mask(uint i) const { return place.has(i); }
    MSL_FN array<index_type, 2> get_multidimensional_index(uint i) const {
        return {index_type(place.column(i)), index_type(place.row(i))};
    }
    MSL_FN E& operator[](uint i) { return elements[i]; }
    MSL_FN const E& operator[](uint i) const { return elements[i]; }

    struct iterator {
        cooperative_tensor* of;
        uint at;
        MSL_FN E& operator*() const { return of->elements[at]; }
        MSL_FN iterator& operator++() {
            at++;
            return *this;
        }
        MSL_FN iterator operator++(int) {
            const iterator before = *this;
            at++;
            return before;
        }
        MSL_FN bool operator==(const iterator& other) const { return at == other.at; }
        MSL_FN bool operator!=(const iterator& other) const { return at != other.at; }
        MSL_FN array<index_type, 2> get_multidimensional_index() const { return of->get_multidimensional_index(at); }
    };
    MSL_FN iterator begin() { return {this, 0}; }
    MSL_FN iterator end() { return {this, L::capacity}; }

    template <class T> MSL_FN void load(const T& from) { exchange(from, [](E& own, auto& other) { own = E(other); }); }
    template <class T> MSL_FN void store(const T& to) const {
        exchange(to, [](const E& own, auto& other) { other = (remove_cv_t<typename T::element_type>)own; });
    }

private:
    // Each of this thread's elements with the one at its place, where the tensor has one.
    template <class T, class F> MSL_FN void exchange(const T& with, F f) const {
#pragma unroll
        for (uint i = 0; i < L::capacity; i++) {
            if (!place.has(i)) continue;
            const long column = place.column(i), row = place.row(i);
            if (column < with.get_extent(0) && row < with.get_extent(1))
                f(const_cast<E&>(elements[i]), with.first[column * with.get_stride(0) + row * with.get_stride(1)]);
        }
    }
};

} // namespace metal

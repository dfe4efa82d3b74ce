// Four elements at a time, from any element on: packed vectors are aligned as their elements are.

template <typename T> struct Packed;
template <> struct Packed<float> { typedef packed_float4 four; };
template <> struct Packed<half> { typedef packed_half4 four; };
template <> struct Packed<bfloat> { typedef packed_bfloat4 four; };

template <typename T>
inline float4 load4(device const T* x) {
    return float4(vec<T, 4>(*(device const typename Packed<T>::four*)x));
}

template <typename T>
inline void store4(device T* x, float4 v) {
    *(device typename Packed<T>::four*)x = typename Packed<T>::four(vec<T, 4>(v));
}

// Elements i .. i + 4 of a row of `cols`; `past` beyond its end.
template <typename T>
inline float4 load_ragged(device const T* x, uint i, uint cols, float past = 0.0f) {
    if (i < cols && cols - i >= 4) return load4(x + i);
    float4 v = past;
    for (uint k = 0; k < 4; k++) {
        if (i + k < cols) v[k] = float(x[i + k]);
    }
    return v;
}

// Writes elements i .. i + 4 of a row of `cols`, as far as there are any.
template <typename T>
inline void store_ragged(device T* x, uint i, uint cols, float4 v) {
    if (i < cols && cols - i >= 4) {
        store4(x + i, v);
        return;
    }
    for (uint k = 0; k < 4; k++) {
        if (i + k < cols) x[i + k] = T(v[k]);
    }
}

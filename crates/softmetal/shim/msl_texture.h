// Textures and samplers. A texture is a number here: what lies behind it the runtime knows, which reads, writes and samples it, and
// watches its texels. There are no mipmaps, cube maps, depth textures or samples: those types are names that cannot be used.
#pragma once
#if !defined(MSL_LINT)
#include "msl_abi.h"
#endif
#include "msl_sync.h"

namespace metal {
enum class access { sample, read, write, read_write };
enum class coord { normalized, pixel };
enum class address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class s_address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class t_address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class r_address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class filter { nearest, linear };
enum class mag_filter { nearest, linear };
enum class min_filter { nearest, linear };
enum class mip_filter { none, nearest, linear };
enum class compare_func { never, less, less_equal, greater, greater_equal, equal, not_equal, always };
enum class border_color { transparent_black, opaque_black, opaque_white };
enum class component { x, y, z, w };
// Of textures without mipmaps these change nothing.
struct max_anisotropy { constexpr max_anisotropy(int) {} };
struct lod_clamp { constexpr lod_clamp(float, float) {} };
struct min_lod_clamp { constexpr min_lod_clamp(float) {} };
struct level {
    float lod;
    constexpr level(float l) : lod(l) {}
};
struct bias { constexpr bias(float) {} };

#if defined(MSL_LINT) || defined(__NVPTX__)
// No code is made of kernels that take textures: declarations let the rest of a file that uses them compile.
struct sampler {
    template <class... A> constexpr sampler(A...) {}
};
#define MSL_TEXTURE(name) \
    template <class T, access A = access::sample> struct name { \
        template <class... P> vec<T, 4> sample(P...) const { return vec<T, 4>(T(0)); } \
        template <class... P> vec<T, 4> gather(P...) const { return vec<T, 4>(T(0)); } \
        template <class... P> vec<T, 4> read(P...) const { return vec<T, 4>(T(0)); } \
        template <class... P> void write(P...) const {} \
        void fence() const {} \
        uint get_width(uint = 0) const { return 0; } \
        uint get_height(uint = 0) const { return 0; } \
        uint get_depth(uint = 0) const { return 0; } \
        uint get_array_size() const { return 0; } \
        uint get_num_mip_levels() const { return 0; } \
    }; \
    template <class T, access A> bool is_null_texture(name<T, A>) { return false; }
MSL_TEXTURE(texture1d) MSL_TEXTURE(texture1d_array) MSL_TEXTURE(texture2d) MSL_TEXTURE(texture2d_array) MSL_TEXTURE(texture3d)
MSL_TEXTURE(texturecube) MSL_TEXTURE(texturecube_array) MSL_TEXTURE(texture2d_ms) MSL_TEXTURE(texture2d_ms_array)
MSL_TEXTURE(texture_buffer) MSL_TEXTURE(depth2d) MSL_TEXTURE(depth2d_array) MSL_TEXTURE(depthcube) MSL_TEXTURE(depthcube_array)
MSL_TEXTURE(depth2d_ms) MSL_TEXTURE(depth2d_ms_array)
#undef MSL_TEXTURE
#else
void pixel_coordinates_cannot_repeat();

// All that a sampler says, or the slot of one that the host has bound.
struct sampler {
    msl_u32 bits;
    template <class... A> constexpr sampler(A... a) : bits(MSL_SAMPLER_DEFAULT) {
        (set(a), ...);
        if ((bits & MSL_SAMPLER_PIXEL) && (repeats(MSL_SAMPLER_S) || repeats(MSL_SAMPLER_T) || repeats(MSL_SAMPLER_R)))
            pixel_coordinates_cannot_repeat();
    }
    static MSL_FN sampler bound(msl_u32 slot) {
        sampler s;
        s.bits = MSL_SAMPLER_BOUND | slot;
        return s;
    }

private:
    constexpr bool repeats(int at) const { return ((bits >> at) & 7u) >= 3u; }
    constexpr void put(int at, msl_u32 mask, msl_u32 value) { bits = (bits & ~(mask << at)) | value << at; }
    constexpr void set(coord c) { put(0, 1, (msl_u32)c); }
    constexpr void set(s_address a) { put(MSL_SAMPLER_S, 7, (msl_u32)a); }
    constexpr void set(t_address a) { put(MSL_SAMPLER_T, 7, (msl_u32)a); }
    constexpr void set(r_address a) { put(MSL_SAMPLER_R, 7, (msl_u32)a); }
    constexpr void set(address a) { set((s_address)a), set((t_address)a), set((r_address)a); }
    constexpr void set(mag_filter f) { put(MSL_SAMPLER_MAG, 1, (msl_u32)f); }
    constexpr void set(min_filter f) { put(MSL_SAMPLER_MIN, 1, (msl_u32)f); }
    constexpr void set(filter f) { set((mag_filter)f), set((min_filter)f); }
    constexpr void set(border_color c) { put(MSL_SAMPLER_BORDER, 3, (msl_u32)c); }
    constexpr void set(mip_filter) {}
    constexpr void set(compare_func) {}
    constexpr void set(max_anisotropy) {}
    constexpr void set(lod_clamp) {}
};

template <class T> struct texel_type { static constexpr int code = -1; };
template <> struct texel_type<float> { static constexpr int code = MSL_TEXEL_FLOAT; };
template <> struct texel_type<half> { static constexpr int code = MSL_TEXEL_HALF; };
template <> struct texel_type<int> { static constexpr int code = MSL_TEXEL_INT; };
template <> struct texel_type<uint> { static constexpr int code = MSL_TEXEL_UINT; };
template <> struct texel_type<short> { static constexpr int code = MSL_TEXEL_SHORT; };
template <> struct texel_type<ushort> { static constexpr int code = MSL_TEXEL_USHORT; };

// What all textures have.
template <class T, access A, int KIND> struct texture_base {
    static_assert(texel_type<T>::code >= 0, "texels are float, half, int, uint, short or ushort");
    static constexpr bool readable = A != access::write;
    static constexpr bool writable = A == access::write || A == access::read_write;
    static constexpr bool sampled = A == access::sample;
    // Of the table of a kernel's arguments.
    static constexpr msl_u32 code = KIND | texel_type<T>::code << 8 | (msl_u32)A << 16 | 1u << 24;
    // 0: no texture; else its slot, from one.
    ulong handle;

    MSL_FN msl_texel texel(msl_u32 op) const { return {(msl_u32)handle, op, KIND, texel_type<T>::code}; }
    static MSL_FN vec<T, 4> run(msl_texel t) {
        msl_rt_texture(&t);
        if constexpr (is_floating_point_v<T>)
            return vec<T, 4>((T)as_type<float>(t.value[0]), (T)as_type<float>(t.value[1]), (T)as_type<float>(t.value[2]),
                             (T)as_type<float>(t.value[3]));
        else return vec<T, 4>((T)t.value[0], (T)t.value[1], (T)t.value[2], (T)t.value[3]);
    }
    MSL_FN vec<T, 4> read_at(uint x, uint y, uint z, uint layer, uint lod) const {
        static_assert(readable, "a texture of access::write cannot be read");
        msl_texel t = texel(MSL_TEXTURE_READ);
        t.at[0] = x, t.at[1] = y, t.at[2] = z, t.layer = layer, t.level = lod;
        return run(t);
    }
    MSL_FN void write_at(vec<T, 4> color, uint x, uint y, uint z, uint layer, uint lod) const {
        static_assert(writable, "a texture needs access::write or access::read_write to be written");
        msl_texel t = texel(MSL_TEXTURE_WRITE);
        t.at[0] = x, t.at[1] = y, t.at[2] = z, t.layer = layer, t.level = lod;
        for (int i = 0; i < 4; i++) {
            if constexpr (is_floating_point_v<T>) t.value[i] = as_type<uint>((float)color[i]);
            else t.value[i] = (msl_u32)color[i];
        }
        msl_rt_texture(&t);
    }
    MSL_FN msl_texel sampling(msl_u32 op, sampler s, float x, float y, float z, uint layer, float lod) const {
        static_assert(sampled, "a texture needs access::sample to be sampled");
        msl_texel t = texel(op);
        t.at[0] = as_type<uint>(x), t.at[1] = as_type<uint>(y), t.at[2] = as_type<uint>(z);
        t.layer = layer, t.level = as_type<uint>(lod), t.sampler = s.bits;
        return t;
    }
    MSL_FN uint extent(uint axis, uint lod) const {
        const uint all = msl_rt_texture_extent((msl_u32)handle, axis);
        return all >> lod ? all >> lod : all ? 1 : 0;
    }

    MSL_FN uint get_width(uint lod = 0) const { return extent(0, lod); }
    MSL_FN uint get_num_mip_levels() const { return 1; }
    MSL_FN void fence() const { static_assert(A == access::read_write, "fence() is for textures of access::read_write"); }
};

// MSL_LAYER is nothing, or `uint layer` with a comma before it.
#define MSL_READ(C, X, Y, Z, LAYER, L) \
    MSL_FN vec<T, 4> read(C c LAYER, uint lod = 0) const { return this->read_at(X, Y, Z, L, lod); } \
    MSL_FN void write(vec<T, 4> color, C c LAYER, uint lod = 0) const { this->write_at(color, X, Y, Z, L, lod); }
#define MSL_SAMPLE(C, X, Y, Z, LAYER, L) \
    MSL_FN vec<T, 4> sample(sampler s, C c LAYER) const { return this->run(this->sampling(MSL_TEXTURE_SAMPLE, s, X, Y, Z, L, 0)); } \
    MSL_FN vec<T, 4> sample(sampler s, C c LAYER, level l) const { \
        return this->run(this->sampling(MSL_TEXTURE_SAMPLE, s, X, Y, Z, L, l.lod)); \
    } \
    MSL_FN vec<T, 4> sample(sampler s, C c LAYER, min_lod_clamp) const { return sample(s, c MSL_PASS_##L); } \
    template <class B> vec<T, 4> sample(sampler, C LAYER, bias) const { \
        static_assert(sizeof(B) == 0, "bias needs the derivatives of a fragment function"); \
    }
#define MSL_PASS_0
#define MSL_PASS_layer , layer
#define MSL_SAMPLE_OFFSET(C, O, X, Y, Z, OX, OY, OZ, LAYER, L) \
    MSL_FN vec<T, 4> sample(sampler s, C c LAYER, O offset) const { return sample(s, c MSL_PASS_##L, level(0), offset); } \
    MSL_FN vec<T, 4> sample(sampler s, C c LAYER, level l, O offset) const { \
        msl_texel t = this->sampling(MSL_TEXTURE_SAMPLE, s, X, Y, Z, L, l.lod); \
        t.offset[0] = OX, t.offset[1] = OY, t.offset[2] = OZ; \
        return this->run(t); \
    }
#define MSL_GATHER(LAYER, L) \
    MSL_FN vec<T, 4> gather(sampler s, float2 c LAYER, int2 offset = int2(0), component which = component::x) const { \
        msl_texel t = this->sampling(MSL_TEXTURE_GATHER, s, c.x, c.y, 0, L, 0); \
        t.offset[0] = offset.x, t.offset[1] = offset.y, t.offset[2] = (int)which; \
        return this->run(t); \
    }
#define MSL_COMMA_LAYER , uint layer
#define MSL_TEXTURE(name, KIND) \
    template <class T, access A = access::sample> struct name : texture_base<T, A, KIND> { \
        static MSL_FN name bound(msl_u32 slot) { \
            name t; \
            t.handle = slot + 1; \
            return t; \
        }
#define MSL_HEIGHT MSL_FN uint get_height(uint lod = 0) const { return this->extent(1, lod); }
#define MSL_LAYERS MSL_FN uint get_array_size() const { return this->extent(3, 0); }

MSL_TEXTURE(texture1d, MSL_TEXTURE_1D)
    MSL_READ(uint, c, 0, 0, , 0)
    MSL_SAMPLE(float, c, 0, 0, , 0)
};
MSL_TEXTURE(texture1d_array, MSL_TEXTURE_1D_ARRAY)
    MSL_LAYERS
    MSL_READ(uint, c, 0, 0, MSL_COMMA_LAYER, layer)
    MSL_SAMPLE(float, c, 0, 0, MSL_COMMA_LAYER, layer)
};
MSL_TEXTURE(texture2d, MSL_TEXTURE_2D)
    MSL_HEIGHT
    MSL_READ(uint2, c.x, c.y, 0, , 0)
    MSL_READ(ushort2, c.x, c.y, 0, , 0)
    MSL_SAMPLE(float2, c.x, c.y, 0, , 0)
    MSL_SAMPLE_OFFSET(float2, int2, c.x, c.y, 0, offset.x, offset.y, 0, , 0)
    MSL_GATHER(, 0)
};
MSL_TEXTURE(texture2d_array, MSL_TEXTURE_2D_ARRAY)
    MSL_HEIGHT MSL_LAYERS
    MSL_READ(uint2, c.x, c.y, 0, MSL_COMMA_LAYER, layer)
    MSL_READ(ushort2, c.x, c.y, 0, MSL_COMMA_LAYER, layer)
    MSL_SAMPLE(float2, c.x, c.y, 0, MSL_COMMA_LAYER, layer)
    MSL_SAMPLE_OFFSET(float2, int2, c.x, c.y, 0, offset.x, offset.y, 0, MSL_COMMA_LAYER, layer)
    MSL_GATHER(MSL_COMMA_LAYER, layer)
};
MSL_TEXTURE(texture3d, MSL_TEXTURE_3D)
    MSL_HEIGHT
    MSL_FN uint get_depth(uint lod = 0) const { return this->extent(2, lod); }
    MSL_READ(uint3, c.x, c.y, c.z, , 0)
    MSL_READ(ushort3, c.x, c.y, c.z, , 0)
    MSL_SAMPLE(float3, c.x, c.y, c.z, , 0)
    MSL_SAMPLE_OFFSET(float3, int3, c.x, c.y, c.z, offset.x, offset.y, offset.z, , 0)
};
MSL_TEXTURE(texture_buffer, MSL_TEXTURE_BUFFER)
    MSL_READ(uint, c, 0, 0, , 0)
};
#undef MSL_TEXTURE
#undef MSL_READ
#undef MSL_SAMPLE
#undef MSL_SAMPLE_OFFSET
#undef MSL_GATHER
#undef MSL_PASS_0
#undef MSL_PASS_layer
#undef MSL_COMMA_LAYER
#undef MSL_HEIGHT
#undef MSL_LAYERS

template <class T, access A, int KIND> MSL_FN bool is_null_texture(const texture_base<T, A, KIND>& t) {
    return msl_rt_texture_extent((msl_u32)t.handle, 0) == 0;
}

#define MSL_ABSENT(name) \
    template <class T, access A = access::sample> struct name { \
        static_assert(sizeof(T) == 0, #name " is not among the textures that softmetal runs"); \
    };
MSL_ABSENT(texturecube) MSL_ABSENT(texturecube_array) MSL_ABSENT(texture2d_ms) MSL_ABSENT(texture2d_ms_array) MSL_ABSENT(depth2d)
MSL_ABSENT(depth2d_array) MSL_ABSENT(depthcube) MSL_ABSENT(depthcube_array) MSL_ABSENT(depth2d_ms) MSL_ABSENT(depth2d_ms_array)
#undef MSL_ABSENT
#endif
} // namespace metal

// The contract between compiled kernels (a shared object) and the runtime that executes them (src/runtime/abi.rs mirrors it).
//
// A kernel library has no undefined symbols. rt/glue.cpp, linked into it, forwards every runtime call to a table of function
// pointers that the host hands over once, right after loading:
//
//   host                                        kernel library
//   dlopen ->                                   static registrations run: kernels, function constants, initialisers
//   msl_abi_version() == MSL_ABI_VERSION ?
//   msl_set_runtime(&table) ->                  the table is copied
//   msl_kernels(), msl_function_constants() ->  linked lists, read once for reflection
//   per host thread and dispatch: write the function constants, msl_init_constants(), then entry(&ctx) for each GPU thread
//
// The rewriter sees this header too: no Metal keyword may be a name here.
// C only, so that every piece (kernels, glue, hooks, host) can include or mirror it.
#pragma once
#if defined(__cplusplus)
extern "C" {
#endif

#define MSL_ABI_VERSION 6u
#define MSL_MAX_BUFFERS 31
#define MSL_MAX_THREADGROUP_ARGS 31
#define MSL_MAX_TEXTURES 128
#define MSL_MAX_SAMPLERS 16
#define MSL_SIMD_WIDTH 32

typedef unsigned int msl_u32;
typedef unsigned long long msl_u64;
typedef __SIZE_TYPE__ msl_size;
#if defined(__cplusplus)
typedef bool msl_bool;
#else
typedef _Bool msl_bool;
#endif

// Where a parameter's value comes from: one number per parameter. Buffers are MSL_SEM_BUFFER + index; an argument that a
// function constant can switch off is MSL_SEM_OPTIONAL_BUFFER + index; threadgroup memory MSL_SEM_THREADGROUP + index. Textures and
// samplers likewise.
enum {
    MSL_SEM_BUFFER = 0x1000,
    MSL_SEM_OPTIONAL_BUFFER = 0x1800,
    MSL_SEM_THREADGROUP = 0x2000,
    MSL_SEM_TEXTURE = 0x3000,
    MSL_SEM_OPTIONAL_TEXTURE = 0x3800,
    MSL_SEM_SAMPLER = 0x4000,
    MSL_SEM_OPTIONAL_SAMPLER = 0x4800,
};

enum {
    MSL_PARAM_CONST = 1,      // what it points or refers to is const
    MSL_PARAM_POINTER = 2,
    MSL_PARAM_REFERENCE = 4,  // neither: by value
};

struct msl_param {
    int semantic;
    msl_u32 element_size;  // bytes of what it points or refers to, or of the value; 0 for void
    msl_u32 alignment;
    msl_u32 flags;
    const char* type;      // text that holds "P = <type>]": what the compiler deduced
    msl_u32 texture;       // of a texture, from the lowest byte: kind, type of texels, access, how many from the index on; else 0
};

struct msl_uint3 {
    msl_u32 x, y, z, pad;
} __attribute__((aligned(16)));

// What one GPU thread sees. Unbound references and optional buffers point at `zero`, a readable page of zeros.
struct msl_ctx {
    void* const* buffers;      // [MSL_MAX_BUFFERS], null where unbound
    void* const* tgmem;        // [MSL_MAX_THREADGROUP_ARGS]
    void* zero;
    struct msl_uint3 thread_in_grid, threadgroup_in_grid, thread_in_threadgroup;
    struct msl_uint3 threads_per_threadgroup, threadgroups_per_grid, threads_per_grid;
    struct msl_uint3 dispatch_threads_per_threadgroup;  // the nominal size, also in a ragged threadgroup
    msl_u32 index_in_threadgroup, lane, simdgroup, simdgroups;
};

struct msl_kernel {
    const char* name;
    void (*entry)(const struct msl_ctx*);
    const struct msl_param* params;
    msl_u32 param_count;
    msl_u32 max_threads;   // [[max_total_threads_per_threadgroup]], 0 if not given
    const char* texts;     // per parameter: the type as the source spells it, TAB, the name, newline; may be empty
    const struct msl_kernel* next;
};

// Function constants are thread-local: each host thread of a dispatch sets its own.
struct msl_function_constant {
    const char* name;
    int index;
    msl_u32 size;
    void* (*value)(void);
    msl_bool* (*defined)(void);
    const char* type;      // as the source spells it; may be empty
    const struct msl_function_constant* next;
};

// A function marked [[visible]], which the host can put into a table.
struct msl_function {
    const char* name;
    void* address;
    const struct msl_function* next;
};

// ---- calls of kernels into the runtime -------------------------------------------------------------------------------------

// Runs a collective once for the lanes of `mask`: in[lane] and out[lane] are on the stacks of those lanes, null for others. Returns 0,
// or who asked for the value of a lane that is not there: the lanes in the lower half, what the first of them asked for in the upper.
typedef msl_u64 (*msl_simd_fn)(void** in, void** out, msl_u32 mask);

// mem_flags bits.
enum { MSL_MEM_DEVICE = 1, MSL_MEM_THREADGROUP = 2 };

// Collectives are told apart by (operation, file, line): the optimiser may clone call sites, so addresses will not do. `line` has the
// column in its upper bits: two calls may stand on one line.
enum { MSL_LINE_BITS = 20, MSL_COLUMNS = 2047 };
#define MSL_COLLECTIVE __attribute__((convergent, noduplicate))
MSL_COLLECTIVE void msl_rt_barrier(int mem_flags, const char* file, int line);
MSL_COLLECTIVE void msl_rt_sg_barrier(int mem_flags, const char* file, int line);
MSL_COLLECTIVE void msl_rt_simd(msl_simd_fn fn, void* in, void* out, const char* file, int line, msl_u32 width);
__attribute__((pure)) msl_u32 msl_rt_lane(void);
// Where the calling thread stands in its threadgroup, and the seed of the dispatch (0: in order).
struct msl_scope {
    msl_u32 lane, simdgroup, seed;
};
void msl_rt_scope(struct msl_scope* out);
// An operation of so many simdgroups together: of all of the threadgroup, or of one. They meet; memory is not ordered. 0: of a thread.
MSL_COLLECTIVE void msl_rt_collective(msl_u32 simdgroups, const char* file, int line);
// Memory of a `threadgroup` variable: one slot per key and threadgroup. Bit 63 of `size`: zero-filled, else poisoned.
void* msl_rt_tg_var(const void* key, msl_size size, msl_size align);
// atomic_thread_fence: `order` and `scope` as in the metal enums (scope 3: device, 4: system).
void msl_rt_fence(int mem_flags, int order, int scope);

// A condition that does not hold. Does not return.
void msl_rt_assertion(const char* text, const char* file, int line);
// A message: one value for each argument, vectors with several components.
enum { MSL_LOG_SIGNED, MSL_LOG_UNSIGNED, MSL_LOG_FLOAT };
struct msl_log_value {
    msl_u32 kind, count;
    msl_u64 bits[4];  // floats as doubles
};
void msl_rt_log(int level, const char* format, const struct msl_log_value* values, msl_u32 count);

// Kinds of textures, types that kernels have their texels as, and what is done with them.
enum { MSL_TEXTURE_1D = 1, MSL_TEXTURE_1D_ARRAY, MSL_TEXTURE_2D, MSL_TEXTURE_2D_ARRAY, MSL_TEXTURE_3D, MSL_TEXTURE_BUFFER };
enum { MSL_TEXEL_FLOAT, MSL_TEXEL_HALF, MSL_TEXEL_INT, MSL_TEXEL_UINT, MSL_TEXEL_SHORT, MSL_TEXEL_USHORT };
enum { MSL_TEXTURE_READ, MSL_TEXTURE_WRITE, MSL_TEXTURE_SAMPLE, MSL_TEXTURE_GATHER };
// The parts of a sampler: the first bit of each. Addresses, filters and border colours count as the enums of msl_texture.h do.
enum {
    MSL_SAMPLER_PIXEL = 1,  // coordinates are texels, else parts of the whole
    MSL_SAMPLER_S = 1,
    MSL_SAMPLER_T = 4,
    MSL_SAMPLER_R = 7,
    MSL_SAMPLER_MAG = 10,
    MSL_SAMPLER_MIN = 11,
    MSL_SAMPLER_BORDER = 12,
    MSL_SAMPLER_DEFAULT = 1 << MSL_SAMPLER_S | 1 << MSL_SAMPLER_T | 1 << MSL_SAMPLER_R,
};
#define MSL_SAMPLER_BOUND 0x80000000u  // the rest is the slot of one that the host has bound

// One use of a texture. Coordinates and the level are bits of floats where it is sampled, and so are values where texels are floats or
// halfs. Of a gather, offset[2] is the component.
struct msl_texel {
    msl_u32 handle, op, kind, type;
    msl_u32 at[3], layer, level, sampler;
    int offset[3];
    msl_u32 value[4];
};
void msl_rt_texture(struct msl_texel* texel);
// Width, height, depth or layers of a texture; 0 if nothing is bound.
__attribute__((pure)) msl_u32 msl_rt_texture_extent(msl_u32 handle, msl_u32 axis);

// ---- the table -------------------------------------------------------------------------------------------------------------

enum { MSL_ACCESS_WRITE = 1, MSL_ACCESS_ATOMIC = 2 };
enum {
    MSL_FAULT_NULL,
    MSL_FAULT_MISALIGNED,     // a: address, b: alignment needed
    MSL_FAULT_INDEX,          // a: index
    MSL_FAULT_SHIFT,          // a: exponent
    MSL_FAULT_DIVISION,
    MSL_FAULT_INVALID_VALUE,  // a: value
    MSL_FAULT_UNREACHABLE,
};

struct msl_fault {
    msl_u32 kind, line, column;
    const char* file;
    const char* type;         // of the object or array, null if there is none
    msl_u64 a, b;
};

// `pc` is the return address in the kernel: the debug information there gives file, line and column.
struct msl_runtime {
    msl_u32 version;
    void (*barrier)(int mem_flags, const char* file, int line, const void* pc);
    void (*simdgroup_barrier)(int mem_flags, const char* file, int line, const void* pc);
    void (*simd)(msl_simd_fn fn, void* in, void* out, const char* file, int line, const void* pc);
    msl_u32 (*lane)(void);
    void* (*threadgroup_variable)(const void* key, msl_size size, msl_size align);
    void (*fence)(int mem_flags, int order, int scope);
    void (*scope)(struct msl_scope* out);
    void (*collective)(msl_u32 simdgroups, const char* file, int line, const void* pc);
    void (*assertion)(const char* text, const char* file, int line);
    void (*log)(int level, const char* format, const struct msl_log_value* values, msl_u32 count);
    void (*texture)(struct msl_texel* texel, const void* pc);
    msl_u32 (*texture_extent)(msl_u32 handle, msl_u32 axis);
    // Checked flavour only (rt/hooks.cpp). Neither need return: a thread that cannot go on is stopped.
    void (*access)(const void* address, msl_size size, msl_u32 flags, const void* pc);
    void (*fault)(const struct msl_fault* fault, const void* pc);
};

// ---- exports of a kernel library -------------------------------------------------------------------------------------------

#define MSL_EXPORT __attribute__((visibility("default")))
MSL_EXPORT msl_u32 msl_abi_version(void);
MSL_EXPORT void msl_set_runtime(const struct msl_runtime* runtime);
MSL_EXPORT const struct msl_kernel* msl_kernels(void);
MSL_EXPORT const struct msl_function_constant* msl_function_constants(void);
MSL_EXPORT const struct msl_function* msl_functions(void);
MSL_EXPORT void msl_init_constants(void);

#if defined(__cplusplus)
}
#endif

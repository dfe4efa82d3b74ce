#!/usr/bin/env python3
"""Makes a stub macOS SDK: enough to compile a dependency's C and to link a Rust program on Linux.

usage: mksdk.py OUT_DIR

The library stubs are lists of symbol names. A program that imports a name missing here does not
link: add the name after checking that Apple's library has it. The headers declare what C code in
dependencies (ring) includes; they are not a C library.
"""
import os
import sys

CORE_FOUNDATION = """
_CFArrayCreate _CFArrayGetCount _CFArrayGetValueAtIndex _CFCopyDescription _CFDataCreate _CFEqual
_CFErrorGetCode _CFGetRetainCount _CFGetTypeID _CFHash _CFRelease _CFRetain
_CFStringCreateWithBytes _CFStringGetBytes _CFStringGetCStringPtr _CFStringGetLength
_kCFAllocatorDefault _kCFTypeArrayCallBacks
"""
# What TLS through the system imports, as the crates for it declare it.
SECURITY = """
_SSLCopyPeerTrust _SSLCreateContext _SSLGetBufferedReadSize _SSLGetConnection
_SSLGetEnabledCiphers _SSLGetNumberEnabledCiphers _SSLGetSessionState _SSLHandshake _SSLRead
_SSLSetALPNProtocols _SSLSetCertificate _SSLSetConnection _SSLSetEnabledCiphers _SSLSetIOFuncs
_SSLSetPeerDomainName _SSLSetPeerID _SSLSetProtocolVersionMax _SSLSetProtocolVersionMin
_SSLSetSessionOption _SSLSetSessionTicketsEnabled _SSLWrite _SecCertificateCreateWithData
_SecCertificateGetTypeID _SecCopyErrorMessageString _SecIdentityCreateWithCertificate
_SecIdentityGetTypeID _SecItemImport _SecKeyGetTypeID _SecKeychainCreate _SecPolicyCreateSSL
_SecRandomCopyBytes _SecTrustEvaluateWithError _SecTrustSetAnchorCertificates
_SecTrustSetAnchorCertificatesOnly _SecTrustSetPolicies _kSecRandomDefault
"""

# Framework -> its version folder and the symbols a program may import from it. Classes need no
# entry: objc2 looks them up by name at run time.
FRAMEWORKS = {
    "CoreFoundation": ("A", CORE_FOUNDATION),
    "CoreGraphics": ("A", ""),
    "Foundation": ("C", "_NSFoundationVersionNumber _NSLocalizedDescriptionKey"),
    "Metal": ("A", "_MTLCreateSystemDefaultDevice _MTLCopyAllDevices _MTLCommonCounterSetTimestamp"),
    "MetalPerformanceShaders": ("A", "_MPSSupportsMTLDevice"),
    "MetalPerformanceShadersGraph": ("A", ""),
    "Security": ("A", SECURITY),
}

OBJC = """
_class_addIvar _class_addMethod _class_addProtocol _class_conformsToProtocol _class_copyIvarList
_class_copyMethodList _class_copyProtocolList _class_getInstanceMethod _class_getInstanceSize
_class_getInstanceVariable _class_getClassMethod _class_getMethodImplementation _class_getName
_class_getSuperclass _class_getVersion _class_isMetaClass _class_respondsToSelector
_ivar_getName _ivar_getOffset _ivar_getTypeEncoding _method_copyArgumentType
_method_copyReturnType _method_exchangeImplementations _method_getImplementation _method_getName
_method_getNumberOfArguments _method_getTypeEncoding _method_setImplementation
_objc_alloc _objc_allocWithZone _objc_alloc_init _objc_allocateClassPair _objc_allocateProtocol
_objc_autorelease _objc_autoreleasePoolPop _objc_autoreleasePoolPush _objc_autoreleaseReturnValue
_objc_begin_catch _objc_constructInstance _objc_copyClassList _objc_copyProtocolList
_objc_destroyWeak _objc_disposeClassPair _objc_end_catch _objc_exception_rethrow
_objc_exception_throw _objc_getAssociatedObject _objc_getClass _objc_getClassList
_objc_getProtocol _objc_initWeak _objc_loadWeakRetained _objc_lookUpClass _objc_msgSend
_objc_msgSendSuper _objc_msgSendSuper2 _objc_copyWeak _objc_moveWeak _objc_storeWeak
_objc_opt_class _objc_opt_new _objc_registerClassPair _objc_registerProtocol _objc_release
_objc_removeAssociatedObjects _objc_retain _objc_retainAutorelease
_objc_retainAutoreleaseReturnValue _objc_retainAutoreleasedReturnValue _objc_retainBlock
_objc_setAssociatedObject _objc_storeStrong _objc_sync_enter _objc_sync_exit
_objc_claimAutoreleasedReturnValue _objc_unsafeClaimAutoreleasedReturnValue
_object_getClass _object_getClassName _object_getIvar _object_isClass _object_setClass
_property_getAttributes _property_getName _protocol_addMethodDescription _protocol_addProtocol
_protocol_conformsToProtocol _protocol_copyMethodDescriptionList _protocol_copyProtocolList
_protocol_getMethodDescription _protocol_getName _protocol_isEqual
_sel_getName _sel_isEqual _sel_registerName __objc_empty_cache ___objc_personality_v0
"""

# Each of these names was found in Apple's own list of libSystem's symbols.
SYSTEM = """dyld_stub_binder
_CCRandomGenerateBytes __Block_copy __Block_release __DefaultRuneLocale __NSConcreteGlobalBlock
__NSConcreteStackBlock __NSGetArgc __NSGetArgv __NSGetEnviron __NSGetExecutablePath
__NSGetProgname __Unwind_Backtrace __Unwind_DeleteException __Unwind_FindEnclosingFunction
__Unwind_GetCFA __Unwind_GetDataRelBase __Unwind_GetGR __Unwind_GetIP __Unwind_GetIPInfo
__Unwind_GetLanguageSpecificData __Unwind_GetRegionStart __Unwind_GetTextRelBase
__Unwind_RaiseException __Unwind_Resume __Unwind_SetGR __Unwind_SetIP ___assert_rtn ___bzero
___cxa_atexit ___darwin_check_fd_set_overflow ___error ___exp10 ___exp10f ___maskrune
___memcpy_chk ___memmove_chk ___memset_chk ___sincos_stret ___sincosf_stret ___snprintf_chk
___stack_chk_fail ___stack_chk_guard ___stderrp ___stdinp ___stdoutp ___strcpy_chk ___tolower
___toupper __dispatch_data_destructor_free __dispatch_main_q __dyld_get_image_header
__dyld_get_image_name __dyld_get_image_vmaddr_slide __dyld_get_shared_cache_range
__dyld_image_count __dyld_register_func_for_add_image __exit __tlv_atexit __tlv_bootstrap _abort
_accept _access _acos _acosf _acosh _acoshf _aligned_alloc _arc4random_buf _asin _asinf _asinh
_asinhf _atan _atan2 _atan2f _atanf _atanh _atanhf _atoi _basename _bind _bsearch _bzero _calloc
_cbrt _cbrtf _ceil _ceilf _cfgetispeed _cfgetospeed _cfmakeraw _cfsetspeed _chdir _chmod _chown
_chroot _clock_gettime _clonefile _close _closedir _confstr _connect _copyfile
_copyfile_state_alloc _copyfile_state_free _copyfile_state_get _copysign _copysignf _cos _cosf
_cosh _coshf _dirfd _dispatch_async_f _dispatch_data_create _dispatch_get_global_queue
_dispatch_queue_create _dispatch_release _dispatch_retain _dispatch_semaphore_create
_dispatch_semaphore_signal _dispatch_semaphore_wait _dispatch_sync_f _dispatch_time _dladdr
_dlclose
_dlerror _dlopen _dlsym _dup _dup2 _environ _erf _erff _execv _execve _execvp _exit _exp _exp2
_exp2f _expf _expm1 _expm1f _fabs _fabsf _faccessat _fchdir _fchmod _fchown _fclonefileat _fclose
_fcntl _fcopyfile _fdatasync _fdim _fdimf _fdopendir _fflush _fileno _flock _floor _floorf _fma
_fmaf _fmax _fmaxf _fmin _fminf _fmod _fmodf _fopen _fork _fprintf _fputs _fread _free
_freeaddrinfo _freeifaddrs _freelocale _frexp _frexpf _fseek _fseeko _fsetattrlist _fstat _fstatat
_fstatfs _fstatvfs _fsync _ftell _ftello _ftruncate _futimens _futimes _fwrite _gai_strerror
_getaddrinfo _getattrlist _getc _getcwd _getdtablesize _getegid _getentropy _getenv _geteuid
_getgid _getgrgid_r _getgrnam_r _getgroups _gethostname _getifaddrs _getnameinfo _getpeereid
_getpeername _getpgid _getpgrp _getpid _getppid _getpriority _getpwnam_r _getpwuid_r _getrlimit
_getrusage _getsid _getsockname _getsockopt _gettimeofday _getuid _gmtime_r _host_page_size
_host_processor_info _host_statistics64 _hypot _hypotf _hypotl _if_indextoname _if_nametoindex
_ilogb _inet_ntop _inet_pton _ioctl _isatty _issetugid _kevent _kevent64 _kill _killpg _kqueue
_lchmod _lchown _ldexp _ldexpf _lgamma_r _lgammaf_r _link _linkat _listen _localeconv _localtime_r
_log _log10 _log10f _log1p _log1pf _log2 _log2f _logb _logf _lrint _lround _lseek _lstat
_mach_absolute_time _mach_error_string _mach_host_self _mach_port_deallocate _mach_task_self_
_mach_thread_self _mach_timebase_info _mach_wait_until _madvise _malloc _malloc_size
_malloc_zone_malloc _memccpy _memchr _memcmp _memcpy _memmem _memmove _memset _memset_pattern16
_mincore _minherit _mkdir _mkdirat _mkdtemp _mkfifo _mknod _mkstemp _mktime _mlock _mlockall _mmap
_modf _modff _mprotect _msync _munlock _munlockall _munmap _nanosleep _nearbyint _nearbyintf
_newlocale _nextafter _nextafterf _nice _open _openat _opendir _openpty _os_log_create
_os_sync_wait_on_address _os_sync_wake_by_address_any _os_unfair_lock_lock _os_unfair_lock_trylock
_os_unfair_lock_unlock _pathconf _pause _pipe _poll _posix_memalign _posix_openpt _posix_spawn
_posix_spawn_file_actions_addclose _posix_spawn_file_actions_adddup2
_posix_spawn_file_actions_addopen _posix_spawn_file_actions_destroy _posix_spawn_file_actions_init
_posix_spawnattr_destroy _posix_spawnattr_init _posix_spawnattr_setflags
_posix_spawnattr_setpgroup _posix_spawnattr_setsigdefault _posix_spawnattr_setsigmask
_posix_spawnp _pow _powf _pread _preadv _printf _proc_listpids _proc_pid_rusage _proc_pidinfo
_proc_pidpath _pselect _pthread_atfork _pthread_attr_destroy _pthread_attr_init
_pthread_attr_set_qos_class_np _pthread_attr_setdetachstate _pthread_attr_setstacksize
_pthread_cond_broadcast _pthread_cond_destroy _pthread_cond_init _pthread_cond_signal
_pthread_cond_timedwait _pthread_cond_timedwait_relative_np _pthread_cond_wait
_pthread_condattr_destroy _pthread_condattr_init _pthread_cpu_number_np _pthread_create
_pthread_detach _pthread_equal _pthread_get_stackaddr_np _pthread_get_stacksize_np
_pthread_getname_np _pthread_getspecific _pthread_join _pthread_key_create _pthread_key_delete
_pthread_kill _pthread_mach_thread_np _pthread_mutex_destroy _pthread_mutex_init
_pthread_mutex_lock _pthread_mutex_trylock _pthread_mutex_unlock _pthread_mutexattr_destroy
_pthread_mutexattr_init _pthread_mutexattr_settype _pthread_once _pthread_rwlock_destroy
_pthread_rwlock_init _pthread_rwlock_rdlock _pthread_rwlock_tryrdlock _pthread_rwlock_trywrlock
_pthread_rwlock_unlock _pthread_rwlock_wrlock _pthread_self _pthread_set_qos_class_self_np
_pthread_setname_np _pthread_setspecific _pthread_sigmask _pthread_threadid_np _putchar _puts
_pwrite _pwritev _qsort _raise _rand _read _readdir _readdir_r _readlink _readlinkat _readv
_realloc _realpath _realpath$DARWIN_EXTSN _recv _recvfrom _recvmsg _remainder _remquo _rename
_renameat _renameatx_np _renamex_np _rewinddir _rint _rintf _rmdir _round _roundf _scalbn
_sched_get_priority_max _sched_get_priority_min _sched_yield _select _sem_close _sem_open
_sem_post _sem_wait _send _sendfile _sendmsg _sendto _setattrlist _setenv _setgid _setgroups
_setitimer _setlocale _setpgid _setpgrp _setpriority _setrlimit _setsid _setsockopt _setuid
_shutdown _sigaction _sigaddset _sigaltstack _sigdelset _sigemptyset _sigfillset _sigismember
_siglongjmp _signal _sigpending _sigprocmask _sigsuspend _sigwait _sin _sinf _sinh _sinhf
_snprintf _sockatmark _socket _socketpair _sqrt _sqrtf _srand _sscanf _stat _statfs _statvfs
_strcasecmp _strcat _strchr _strcmp _strcpy _strcspn _strdup _strerror _strerror_r _strftime
_strlen _strncasecmp _strncmp _strncpy _strnlen _strpbrk _strrchr _strspn _strstr _strtod _strtof
_strtol _strtoll _strtoul _strtoull _symlink _sync _sysconf _sysctl _sysctlbyname _sysctlnametomib
_syslog _system _tan _tanf _tanh _tanhf _task_for_pid _task_info _task_threads _tcdrain _tcflow
_tcflush _tcgetattr _tcgetpgrp _tcsendbreak _tcsetattr _tcsetpgrp _tgamma _tgammaf _thread_info
_thread_policy_set _time _times _tmpfile _towlower _towupper _trunc _truncate _truncf _ttyname_r
_tzset _umask _uname _ungetc _unlink _unlinkat _unsetenv _usleep _utimensat _utimes _vfprintf
_vm_allocate _vm_deallocate _vm_page_size _vprintf _vsnprintf _wait _wait4 _waitpid _wcwidth
_write _writev
"""

HEADERS = {
    "TargetConditionals.h": """
#define TARGET_OS_MAC 1
#define TARGET_OS_OSX 1
#define TARGET_OS_IPHONE 0
#define TARGET_OS_IOS 0
#define TARGET_OS_WATCH 0
#define TARGET_OS_TV 0
#define TARGET_CPU_ARM64 1
""",
    "assert.h": """
void __assert_rtn(const char *, const char *, int, const char *) __attribute__((noreturn));
#ifdef NDEBUG
#define assert(e) ((void)0)
#else
#define assert(e) ((e) ? (void)0 : __assert_rtn(__func__, __FILE__, __LINE__, #e))
#endif
""",
    "stdlib.h": """
#include <stddef.h>
void *malloc(size_t);
void *calloc(size_t, size_t);
void *realloc(void *, size_t);
void free(void *);
void abort(void) __attribute__((noreturn));
""",
    "string.h": """
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
void *memchr(const void *, int, size_t);
size_t strlen(const char *);
int strcmp(const char *, const char *);
""",
}


def stub(install_name, symbols):
    targets = "[ arm64-macos, arm64e-macos, x86_64-macos ]"
    out = f"--- !tapi-tbd\ntbd-version: 4\ntargets: {targets}\ninstall-name: '{install_name}'\n"
    if symbols:
        out += f"exports:\n  - targets: {targets}\n    symbols: [ {', '.join(symbols)} ]\n"
    return out + "...\n"


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def main(out):
    lib = os.path.join(out, "usr", "lib")
    put(f"{lib}/libobjc.tbd", stub("/usr/lib/libobjc.A.dylib", OBJC.split()))
    put(f"{lib}/libiconv.tbd", stub("/usr/lib/libiconv.2.dylib", []))
    for name in ("libSystem", "libc", "libm"):
        put(f"{lib}/{name}.tbd", stub("/usr/lib/libSystem.B.dylib", SYSTEM.split()))
    for name, (version, symbols) in FRAMEWORKS.items():
        folder = f"/System/Library/Frameworks/{name}.framework"
        put(f"{out}{folder}/{name}.tbd", stub(f"{folder}/Versions/{version}/{name}", symbols.split()))
    for name, text in HEADERS.items():
        put(f"{out}/usr/include/{name}", "#pragma once" + text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

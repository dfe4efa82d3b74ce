//! Sources to pipelines.

use std::path::PathBuf;
use std::ptr::NonNull;

use objc2::available;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDataType, MTLDevice as _,
    MTLFunction, MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions,
    MTLMathMode, MTLPipelineOption,
};

use super::archive::{self, Archive, Job};
use super::device::RawDevice;
use crate::driver::check::{self, PipelineFacts};
use crate::driver::language::Language;
use crate::error::GpuError;
use crate::kernels::Constants;

pub(super) struct Library {
    name: String,
    raw: Retained<ProtocolObject<dyn MTLLibrary>>,
    /// Machine code of its kernels from an earlier run.
    archive: Option<Archive>,
    /// Where machine code goes for the next one.
    file: Option<PathBuf>,
}

pub(super) struct Ready {
    pub(super) raw: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    pub(super) facts: PipelineFacts,
}

impl Library {
    pub(super) fn compile(
        device: &RawDevice,
        name: &str,
        source: &str,
        file: Option<PathBuf>,
    ) -> Result<Library, GpuError> {
        let raw = device
            .newLibraryWithSource_options_error(
                &NSString::from_str(source),
                Some(&options(Language::of(source))),
            )
            .map_err(|error| failed(name, &error))?;
        raw.setLabel(Some(&NSString::from_str(name)));
        let archive = file.as_deref().and_then(|file| archive::open(device, file));
        Ok(Library { name: name.to_owned(), raw, archive, file })
    }

    /// A kernel with its constants, and what the archive should learn of it.
    pub(super) fn pipeline(
        &self,
        device: &RawDevice,
        function: &str,
        constants: &Constants,
    ) -> Result<(Ready, Option<Job>), GpuError> {
        let fails = |error: &NSError| failed(&format!("{} of {}", function, self.name), error);
        let values = MTLFunctionConstantValues::new();
        for (index, value) in constants.values() {
            // SAFETY: the pointer is to a value of the type named, and Metal copies it in the call.
            unsafe {
                values.setConstantValue_type_atIndex(NonNull::from(&value).cast(), MTLDataType::UInt, index);
            }
        }
        let name = NSString::from_str(function);
        let made =
            self.raw.newFunctionWithName_constantValues_error(&name, &values).map_err(|e| fails(&e))?;
        let descriptor = describe(&made, function);
        let (raw, job) = if let Some(raw) = self.find(device, &descriptor) {
            (raw, None)
        } else {
            let raw = device.newComputePipelineStateWithDescriptor_options_reflection_error(
                &descriptor,
                MTLPipelineOption::None,
                None,
            );
            let file = self.file.clone();
            let job = file.map(|file| Job { file, function: made, name: function.to_owned() });
            (raw.map_err(|e| fails(&e))?, job)
        };
        let made = (
            raw.maxTotalThreadsPerThreadgroup(),
            raw.threadExecutionWidth(),
            raw.staticThreadgroupMemoryLength(),
        );
        let facts = check::pipeline(function, made)?;
        Ok((Ready { raw, facts }, job))
    }

    /// The kernel with its machine code from an earlier run.
    fn find(
        &self,
        device: &RawDevice,
        descriptor: &MTLComputePipelineDescriptor,
    ) -> Option<Retained<ProtocolObject<dyn MTLComputePipelineState>>> {
        let archive = self.archive.as_ref()?;
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive.raw])));
        let found = device.newComputePipelineStateWithDescriptor_options_reflection_error(
            descriptor,
            MTLPipelineOption::FailOnBinaryArchiveMiss,
            None,
        );
        descriptor.setBinaryArchives(None);
        found.ok()
    }
}

/// What a pipeline is made of, in the one way that an archive will find again.
pub(super) fn describe(
    function: &ProtocolObject<dyn MTLFunction>,
    name: &str,
) -> Retained<MTLComputePipelineDescriptor> {
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setComputeFunction(Some(function));
    descriptor.setLabel(Some(&NSString::from_str(name)));
    descriptor
}

/// Mathematics are safe: fully masked rows and huge values meet infinities, which
/// the fast mode may assume away; and what was shown of the kernels elsewhere was shown with precise functions.
pub(super) fn options(language: Language) -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(match language {
        Language::Metal3 => MTLLanguageVersion::Version3_1,
        Language::Metal4 => MTLLanguageVersion::Version4_0,
    });
    if available!(macos = 15.0) {
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    } else {
        #[allow(deprecated)] // The one way before macOS 15.
        options.setFastMathEnabled(false);
    }
    options
}

/// The compiler's text is the description of the error.
fn failed(kernel: &str, error: &NSError) -> GpuError {
    GpuError::compile(kernel, error.localizedDescription().to_string())
}

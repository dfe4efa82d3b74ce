use super::*;
use crate::fault::{Fault, Faulty};
use crate::gpu::{Gpu, LibraryId};
use crate::null::Null;

/// A stand-in for planning and compiling: each provider is a library.
fn serve(gpu: &Faulty) -> impl FnMut(Provider) -> Result<LibraryId, GpuError> {
    |provider| gpu.library(provider.name(), "")
}

fn device() -> Arc<Faulty> {
    Arc::new(Faulty::new(Arc::new(Null::new())))
}

fn made(providers: &Providers) -> Vec<(Provider, Why, u64)> {
    providers.selections().into_iter().map(|s| (s.provider, s.why, s.times)).collect()
}

fn from_variables(vars: impl IntoIterator<Item = (String, String)>) -> Result<Providers, GpuError> {
    let providers = Providers::new();
    providers.follow(vars)?;
    Ok(providers)
}

#[test]
fn the_preferred_provider_serves_where_nobody_asks_for_another() {
    let (gpu, providers) = (device(), Providers::new());
    for _ in 0..24 {
        providers.choose(OpKind::Sdpa, serve(&gpu)).unwrap();
    }
    assert_eq!(made(&providers), [(Provider::SdpaFlash, Why::Default, 24)]);
}

#[test]
fn a_provider_that_does_not_compile_is_quarantined_and_the_next_one_serves() {
    let (gpu, providers) = (device(), Providers::new());
    gpu.fail(Fault::Library, 1);
    providers.choose(OpKind::Sdpa, serve(&gpu)).unwrap();
    providers.choose(OpKind::Sdpa, serve(&gpu)).unwrap();
    assert_eq!(gpu.calls(Fault::Library), 3, "flash, plain; then plain alone");
    let quarantined = providers.quarantined();
    assert_eq!(quarantined.len(), 1);
    assert_eq!((quarantined[0].op, quarantined[0].provider), (OpKind::Sdpa, Provider::SdpaFlash));
    let error = quarantined[0].error.clone();
    assert_eq!(
        made(&providers),
        [(Provider::SdpaPlain, Why::Fallback { from: Provider::SdpaFlash, error }, 2)]
    );
    providers.release();
    providers.choose(OpKind::Sdpa, serve(&gpu)).unwrap();
    assert_eq!(made(&providers)[1], (Provider::SdpaFlash, Why::Default, 1));
}

#[test]
fn the_first_failure_is_the_error_where_nobody_can_serve() {
    let (gpu, providers) = (device(), Providers::new());
    gpu.fail_always(Fault::Library);
    let error = providers.choose(OpKind::Sdpa, serve(&gpu)).unwrap_err();
    assert!(matches!(&error, GpuError::Compile { kernel, .. } if kernel == "flash"), "{error}");
}

#[test]
fn a_provider_that_does_not_know_a_case_is_passed_over_for_that_case_only() {
    let providers = Providers::new();
    let unsupported = GpuError::Unsupported { op: "sdpa", reason: "a head of 7".to_owned() };
    let chosen = providers.choose(OpKind::Sdpa, |name| {
        if name == Provider::SdpaFlash { Err(unsupported.clone()) } else { Ok(name) }
    });
    assert_eq!(chosen, Ok(Provider::SdpaPlain));
    assert_eq!(providers.choose(OpKind::Sdpa, Ok), Ok(Provider::SdpaFlash));
    assert!(providers.quarantined().is_empty());
}

#[test]
fn a_device_that_fails_is_no_fault_of_a_provider() {
    let providers = Providers::new();
    let memory = GpuError::no_room("test", 1, None);
    let mut tried = 0;
    let result: Result<(), _> = providers.choose(OpKind::Sdpa, |_| {
        tried += 1;
        Err(memory.clone())
    });
    assert_eq!((result, tried), (Err(memory), 1));
}

#[test]
fn a_provider_asked_for_by_name_serves_or_is_the_error() {
    let (gpu, providers) = (device(), Providers::new());
    providers.set("sdpa", "plain").unwrap();
    assert_eq!(providers.choose(OpKind::Sdpa, Ok), Ok(Provider::SdpaPlain));
    assert_eq!(made(&providers), [(Provider::SdpaPlain, Why::Override, 1)]);
    gpu.fail(Fault::Library, 1);
    let error = providers.choose(OpKind::Sdpa, serve(&gpu)).unwrap_err();
    assert!(matches!(&error, GpuError::Provider { op: "sdpa", provider: "plain", .. }), "{error}");
    assert!(error.to_string().contains("`plain`, which was asked for"), "{error}");
    assert_eq!(gpu.calls(Fault::Library), 1, "no other was tried");
}

#[test]
fn the_environment_asks_and_a_caller_goes_before_it() {
    let var = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let vars = [
        var("METALLIC_FORCE_SDPA_BACKEND", "plain"),
        var("HOME", "x"),
        var("METALLIC_FORCE_MATMUL_BACKEND", ""),
    ];
    let providers = from_variables(vars).unwrap();
    assert_eq!(providers.choose(OpKind::Sdpa, Ok), Ok(Provider::SdpaPlain));
    assert_eq!(providers.choose(OpKind::Matmul, Ok), Ok(Provider::MatmulLibrary));
    providers.set_by_flag("sdpa=flash").unwrap();
    assert_eq!(providers.choose(OpKind::Sdpa, Ok), Ok(Provider::SdpaFlash));
    assert_eq!(providers.asked(), [(OpKind::Sdpa, Provider::SdpaFlash)]);
    providers.follow([var("METALLIC_FORCE_SDPA_BACKEND", "plain")]).unwrap();
    assert_eq!(providers.choose(OpKind::Sdpa, Ok), Ok(Provider::SdpaFlash), "whoever comes first");
    let why: Vec<Why> = providers.selections().into_iter().map(|s| s.why).collect();
    assert_eq!(why, [Why::Environment, Why::Default, Why::Override]);
    assert_eq!(OpKind::Sdpa.variable(), "METALLIC_FORCE_SDPA_BACKEND");
}

#[test]
fn a_provider_that_would_not_do_well_serves_only_where_it_is_asked_for() {
    let providers = Providers::new();
    let choice =
        Choice { op: OpKind::Matmul, without: vec![Provider::MatmulLibrary, Provider::MatmulTensor] };
    assert_eq!(providers.choose(choice.clone(), Ok), Ok(Provider::MatmulTiles));
    assert_eq!(made(&providers), [(Provider::MatmulTiles, Why::Default, 1)], "no fallback");
    assert!(!providers.is_forced(OpKind::Matmul));
    providers.set_by_flag("matmul=library").unwrap();
    assert!(providers.is_forced(OpKind::Matmul) && !providers.is_forced(OpKind::Sdpa));
    assert_eq!(providers.choose(choice, Ok), Ok(Provider::MatmulLibrary));
}

#[test]
fn a_name_nobody_has_is_an_error_that_lists_what_there_is() {
    let providers = Providers::new();
    let cases = [
        (
            "sdpa=fast",
            "no provider `sdpa=fast`; there are sdpa=flash, sdpa=plain, sdpa=mpsgraph, sdpa=mpsgraph+project",
        ),
        (
            "spda=plain",
            "no provider `spda=plain`; there are sdpa=flash, sdpa=plain, sdpa=mpsgraph, sdpa=mpsgraph+project, matmul=library, matmul=tensor, matmul=tiles, matmul=rows, matmul=mps",
        ),
        (
            "sdpa",
            "no provider `sdpa`; there are sdpa=flash, sdpa=plain, sdpa=mpsgraph, sdpa=mpsgraph+project, matmul=library, matmul=tensor, matmul=tiles, matmul=rows, matmul=mps",
        ),
        (
            "",
            "no provider ``; there are sdpa=flash, sdpa=plain, sdpa=mpsgraph, sdpa=mpsgraph+project, matmul=library, matmul=tensor, matmul=tiles, matmul=rows, matmul=mps",
        ),
    ];
    for (flag, message) in cases {
        assert_eq!(providers.set_by_flag(flag).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_variable_that_means_nothing_is_named_with_what_it_can_be() {
    let var = |name: &str, value: &str| [(format!("METALLIC_FORCE_{name}_BACKEND"), value.to_owned())];
    let error = from_variables(var("SDPA", "fast")).unwrap_err();
    let choices = "METALLIC_FORCE_SDPA_BACKEND=flash, METALLIC_FORCE_SDPA_BACKEND=plain, METALLIC_FORCE_SDPA_BACKEND=mpsgraph, \
                   METALLIC_FORCE_SDPA_BACKEND=mpsgraph+project";
    let message = format!("`METALLIC_FORCE_SDPA_BACKEND=fast` names no provider; there are {choices}");
    assert_eq!(error.to_string(), message);
    let message = format!("soft cannot take `METALLIC_FORCE_SDPA_BACKEND=fast`: there are {choices}");
    assert_eq!(error.on("soft").to_string(), message);
    let error = from_variables(var("SPDA", "plain")).unwrap_err().to_string();
    assert!(error.contains("_SPDA_") && error.contains(choices) && error.contains("=rows"), "{error}");
}

#[test]
fn a_variable_that_means_nothing_is_passed_over_where_a_caller_has_asked() {
    let var = |name: &str, value: &str| [(format!("METALLIC_FORCE_{name}_BACKEND"), value.to_owned())];
    let providers = Providers::new();
    providers.set("sdpa", "plain").unwrap();
    providers.follow(var("SDPA", "fast")).unwrap();
    assert_eq!(providers.choose(OpKind::Sdpa, Ok), Ok(Provider::SdpaPlain));
    assert!(providers.passed_over()[0].to_string().contains("`METALLIC_FORCE_SDPA_BACKEND=fast`"));
    assert!(providers.follow(var("MATMUL", "fast")).is_err(), "nobody has asked for that");
    assert!(providers.follow(var("SPDA", "plain")).is_err(), "nor for that");
}

#[test]
fn the_list_of_choices_is_bounded() {
    let providers = Providers::new();
    for i in 0..3 * EVENTS {
        providers.set("sdpa", ["flash", "plain"][i % 2]).unwrap();
        providers.choose(OpKind::Sdpa, Ok).unwrap();
    }
    assert_eq!(providers.selections().len(), EVENTS);
}

#[test]
fn what_a_device_has_to_say_is_kept_once() {
    let providers = Providers::new();
    assert!(providers.notes().is_empty());
    providers.tell(vec!["slow".to_owned(), "loud".to_owned()]);
    providers.clone().tell(vec!["slow".to_owned()]);
    assert_eq!(providers.notes(), ["slow", "loud"]);
}

#[test]
fn apples_own_serve_only_where_they_are_asked_for() {
    let providers = Providers::new();
    let mut tried = Vec::new();
    let refused = providers.choose(OpKind::Matmul, |provider| -> Result<(), GpuError> {
        tried.push(provider);
        Err(GpuError::unsupported("matmul", "nobody serves"))
    });
    assert!(refused.is_err() && !tried.iter().any(|provider| provider.is_apples()), "{tried:?}");
    providers.set_by_flag("matmul=mps").unwrap();
    assert_eq!(providers.choose(OpKind::Matmul, Ok), Ok(Provider::MatmulMps));
    let vars = [("METALLIC_FORCE_SDPA_BACKEND".to_owned(), "mpsgraph".to_owned())];
    let providers = from_variables(vars).unwrap();
    assert_eq!(providers.choose(OpKind::Sdpa, Ok), Ok(Provider::SdpaMpsGraph));
    assert_eq!(made(&providers), [(Provider::SdpaMpsGraph, Why::Environment, 1)]);
    let text = Providers::check_flag("matmul=mpsgraph").unwrap_err().to_string();
    assert!(text.contains("matmul=mps") && text.contains("matmul=tiles"), "{text}");
}

#[test]
fn others_stand_in_for_apples_own_and_say_so_once_with_the_reason() {
    let providers = Providers::new();
    providers.set("sdpa", "mpsgraph").unwrap();
    let error = GpuError::Unsupported { op: "attention", reason: "2 sequences".to_owned() };
    let serve = |many: bool| {
        let error = error.clone();
        move |provider: Provider| if many && provider.is_apples() { Err(error.clone()) } else { Ok(provider) }
    };
    for many in [true, true, false, true] {
        let served = if many { Provider::SdpaFlash } else { Provider::SdpaMpsGraph };
        assert_eq!(providers.choose(OpKind::Sdpa, serve(many)), Ok(served));
    }
    let why = Why::Fallback { from: Provider::SdpaMpsGraph, error: error.clone() };
    let told: Vec<(Provider, Why)> = providers.stood_in().into_iter().map(|s| (s.provider, s.why)).collect();
    assert_eq!(told, [(Provider::SdpaFlash, why)]);
    // One that does not compile is not tried again.
    let mut tried = 0;
    for _ in 0..3 {
        let chosen = providers.choose(OpKind::Sdpa, |provider| {
            tried += u32::from(provider.is_apples());
            if provider.is_apples() { Err(GpuError::compile("graph", "no")) } else { Ok(provider) }
        });
        assert_eq!(chosen, Ok(Provider::SdpaFlash));
    }
    assert_eq!((tried, providers.quarantined().len()), (1, 1));
    // What is no fault of a provider ends the search.
    providers.release();
    let lost = providers
        .choose(OpKind::Sdpa, |_| -> Result<(), GpuError> { Err(GpuError::execution("submission", "lost")) });
    assert!(matches!(lost, Err(GpuError::Execution { .. })), "{lost:?}");
}

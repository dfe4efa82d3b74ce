//! Every family of kernels is held to its declaration: it compiles, its address spaces are right, and what Rust says of
//! a kernel is what the MSL says.

use std::collections::HashSet;

use metallic_gpu::Access;
use metallic_gpu::kernels::{Arg, FAMILIES, Family, MAX_ARGS, MAX_CONSTANTS};
use softmetal::{Argument, ArgumentKind, Compiler, Flavour, Interface, Kernel, Source};

fn compiler(flavour: Flavour) -> Option<Compiler> {
    Some(metallic_testkit::needed(Compiler::new())?.flavour(flavour))
}

/// As the software device names it, so that each is compiled once for all tests.
fn source(family: &Family) -> Source {
    Source::new(family.name, family.source())
}

fn interface(compiler: &Compiler, family: &Family) -> Interface {
    compiler.reflect(&source(family)).unwrap_or_else(|error| panic!("{}: {error}", family.name))
}

#[test]
fn every_family_compiles_plain_and_checked() {
    let (Some(plain), Some(checked)) = (compiler(Flavour::Plain), compiler(Flavour::Checked)) else { return };
    let compile = |(family, compiler): (&Family, &Compiler)| match compiler.compile(&source(family)) {
        Ok(library) => assert!(library.warnings().is_empty(), "{}: {:?}", family.name, library.warnings()),
        Err(error) => panic!("{}: {error}", family.name),
    };
    // Other tests compile the same in their own order: these come from the other end, so that they meet and neither waits.
    let both = |family: &'static Family| [(family, &checked), (family, &plain)];
    let every = std::sync::Mutex::new(FAMILIES.iter().rev().copied().flat_map(both));
    let next = || every.lock().ok().and_then(|mut every| every.next());
    std::thread::scope(|scope| {
        let work = || std::iter::from_fn(next).for_each(compile);
        scope.spawn(work);
        work();
    });
}

#[test]
fn every_pointer_points_into_the_address_space_it_says() {
    let Some(compiler) = compiler(Flavour::Plain) else { return };
    for family in FAMILIES {
        let found = softmetal::lint::lint(&compiler, &source(family));
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", family.name));
        assert!(found.is_empty(), "{}: {found:#?}", family.name);
    }
}

#[test]
fn families_and_their_kernels_have_names_of_their_own() {
    let mut names = HashSet::new();
    let mut functions = HashSet::new();
    for family in FAMILIES {
        assert!(names.insert(family.name), "two families `{}`", family.name);
        for (function, _) in family.functions() {
            assert!(functions.insert(function), "two kernels `{function}`");
        }
    }
}

#[test]
fn every_kernel_of_a_source_is_declared_and_every_declared_one_is_there() {
    let Some(compiler) = compiler(Flavour::Plain) else { return };
    for family in FAMILIES {
        let interface = interface(&compiler, family);
        let written: HashSet<&str> = interface.kernels.iter().map(|k| k.name.as_str()).collect();
        let declared: HashSet<&str> = family.functions().map(|(name, _)| name).collect();
        let undeclared: Vec<_> = written.difference(&declared).collect();
        let missing: Vec<_> = declared.difference(&written).collect();
        assert!(
            undeclared.is_empty(),
            "{}.metal has kernels that Rust does not declare: {undeclared:?}",
            family.name
        );
        assert!(missing.is_empty(), "{}.metal lacks declared kernels: {missing:?}", family.name);
    }
}

#[test]
fn arguments_are_what_rust_says_they_are() {
    let Some(compiler) = compiler(Flavour::Plain) else { return };
    let mut wrong = Vec::new();
    for family in FAMILIES {
        let interface = interface(&compiler, family);
        for (function, args) in family.functions() {
            let Some(kernel) = interface.kernels.iter().find(|k| k.name == function) else { continue };
            let problems = disagreements(family, kernel, args);
            wrong.extend(
                problems.into_iter().map(|problem| format!("{}: {function}: {problem}", family.name)),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn disagreements(family: &Family, kernel: &Kernel, args: &[Arg]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut buffers: Vec<(u32, &Argument)> = Vec::new();
    for argument in &kernel.arguments {
        match argument.kind {
            ArgumentKind::Buffer(index) => buffers.push((index, argument)),
            ArgumentKind::Threadgroup(0) | ArgumentKind::BuiltIn(_) => {}
            ArgumentKind::Texture(_) | ArgumentKind::Sampler(_) => {
                wrong.push(format!("`{}` is no buffer", argument.name));
            }
            ArgumentKind::Threadgroup(index) => {
                wrong.push(format!("threadgroup memory at {index}, 0 is bound"));
            }
        }
    }
    buffers.sort_by_key(|(index, _)| *index);
    let indices: Vec<u32> = buffers.iter().map(|(index, _)| *index).collect();
    let needed: Vec<u32> = (0..=args.len() as u32).collect();
    if indices != needed || args.len() > MAX_ARGS {
        wrong.push(format!(
            "buffers at {indices:?}, Rust declares params at 0 and {} arguments after",
            args.len()
        ));
        return wrong;
    }
    let params = buffers[0].1;
    let declared = family.params.iter().filter_map(|msl| msl.split_whitespace().nth(1));
    if params.pointer
        || !params.read_only
        || !declared.into_iter().any(|name| params.type_text.contains(name))
    {
        wrong.push(format!(
            "params are `{}`, not a constant reference to a declared struct",
            params.type_text
        ));
    }
    for ((index, found), arg) in buffers[1..].iter().zip(args) {
        let mut say = |text: String| wrong.push(format!("buffer {index} (`{}`): {text}", found.name));
        if found.name != arg.name {
            say(format!("Rust calls it `{}`", arg.name));
        }
        if found.read_only != (arg.access == Access::Read) {
            say(format!("`{}`, Rust says {:?}", found.type_text, arg.access));
        }
        if !arg.align.is_power_of_two() || !(arg.align as u32).is_multiple_of(found.alignment.max(1)) {
            say(format!(
                "elements are aligned to {}, Rust binds at multiples of {}",
                found.alignment, arg.align
            ));
        }
        if found.optional {
            say("optional; every argument is bound".to_owned());
        }
    }
    wrong
}

#[test]
fn function_constants_are_words_that_fit() {
    let Some(compiler) = compiler(Flavour::Plain) else { return };
    for family in FAMILIES {
        let mut indices = HashSet::new();
        for constant in interface(&compiler, family).constants {
            let name = format!("{}: constant `{}`", family.name, constant.name);
            assert_eq!(constant.size, 4, "{name} is `{}`, `uint` is needed", constant.type_text);
            assert!(constant.type_text.contains("uint"), "{name} is `{}`, not `uint`", constant.type_text);
            assert!((constant.index as usize) < MAX_CONSTANTS, "{name} has index {}", constant.index);
            assert!(indices.insert(constant.index), "{name} shares index {}", constant.index);
        }
    }
}

#[test]
fn threadgroups_that_kernels_ask_for_exist_on_every_device() {
    let Some(compiler) = compiler(Flavour::Plain) else { return };
    for family in FAMILIES {
        for kernel in interface(&compiler, family).kernels {
            if let Some(threads) = kernel.max_threads {
                assert!((1..=1024).contains(&threads), "{}: {threads} threads", kernel.name);
            }
        }
    }
}

/// clang takes these; Apple's compiler does not.
#[test]
fn no_kernel_uses_what_metal_leaves_out_of_cpp() {
    const ABSENT: &[&str] = &[
        "double",
        "std",
        "new",
        "delete",
        "virtual",
        "goto",
        "try",
        "throw",
        "catch",
        "dynamic_cast",
        "typeid",
        "thread_local",
        "asm",
        "malloc",
        "printf",
        "__attribute__",
        "__fp16",
        "_Float16",
        "__int128",
    ];
    for family in FAMILIES {
        let texts = family.uses.iter().copied().chain([(family.name, family.text)]);
        for (file, text) in texts {
            let code = without_comments(text);
            for word in code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                assert!(!ABSENT.contains(&word) && !word.starts_with("__builtin"), "{file}: `{word}`");
            }
            assert!(!code.contains("#include"), "{file}: families are joined by Rust, not by `#include`");
        }
    }
}

fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        code += &rest[..start];
        let tail = &rest[start..];
        let end = if tail.starts_with("//") {
            tail.find('\n')
        } else if tail.starts_with("/*") {
            tail.find("*/").map(|end| end + 2)
        } else {
            code.push('/');
            Some(1)
        };
        rest = end.map_or("", |end| &tail[end..]);
    }
    code + rest
}

#[test]
fn comments_are_taken_out_before_words_are_judged() {
    assert_eq!(without_comments("a / b // double\nc /* new */ d"), "a / b \nc  d");
}

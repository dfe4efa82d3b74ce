use std::ffi::CString;

use super::*;

fn wanted<'a>(source: &'a str, constants: &'a Constants) -> Wanted<'a> {
    Wanted { library: "t", source, function: "f", constants, capability: 90 }
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn translation() -> Translation {
    let takes = Takes { params: 24, addresses: 3 };
    let (entry, constants) = (text("f"), "0=1,3=10".to_owned());
    Translation { entry, takes, constants, text: text(".version 7.8\n\n.entry f()\n") }
}

/// A folder of its own for a test, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("metallic-ptx-{name}-{}", std::process::id())))
    }

    fn with(self, name: &str, made: &Translation) -> Folder {
        keep(&self.0, name, &made.written()).unwrap();
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn without_compiler(folders: Vec<PathBuf>) -> Translator {
    Translator {
        folders,
        into: None,
        #[cfg(feature = "soft")]
        compiler: Err("there is no clang".to_owned()),
        troubles: Mutex::default(),
        made: AtomicU64::new(0),
    }
}

#[test]
fn what_is_written_is_read_again_and_damage_is_named() {
    let made = translation();
    let written = made.written();
    assert_eq!(Translation::read(written.as_bytes()), Ok(made));
    let (head, body) = written.split_once("\n\n").unwrap();
    let with = |from: &str, to: &str| format!("{}\n\n{body}", head.replace(from, to));
    for (damaged, part) in [
        (String::new(), "before its text"),
        (written[..20].to_owned(), "before its text"),
        (with("ptx 3", "ptx 2"), "`metallic ptx 3`"),
        (with("24 3", "24"), "two numbers"),
        (with("24 3", "24 many"), "two numbers"),
        (with("24 3", "24 2"), "its checksum"),
        (with("\nf\n", "\ng\n"), "its checksum"),
        (format!("{MARK}\nf\n1 1\n\nx"), "lacks its constants"),
        (written[..written.len() - 5].to_owned(), "20 bytes of text where 25 were written"),
        (written.replace("entry", "entri"), "its checksum"),
        (format!("{written}\n"), "26 bytes of text where 25 were written"),
    ] {
        let reason = Translation::read(damaged.as_bytes()).unwrap_err();
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert!(Translation::read(&[0xff, 0xfe]).unwrap_err().contains("no text"));
}

#[test]
fn other_constants_sources_capabilities_and_translators_are_other_files() {
    let (one, two) = (Constants::of([1, 2]), Constants::of([1, 3]));
    let key = wanted("a", &one).key(80);
    assert_eq!(key, wanted("a", &one).key(80));
    assert_ne!(key, wanted("b", &one).key(80));
    assert_ne!(key, wanted("a", &two).key(80));
    assert_ne!(key, wanted("a", &one).key(90));
    assert_ne!(key, wanted("a", &one).key_by("another translator", 80));
    let targets = |capability| Wanted { capability, ..wanted("a", &one) }.targets().collect::<Vec<_>>();
    assert_eq!(targets(120), [90, 80], "newer GPUs take the same");
    assert_eq!((targets(90), targets(86), targets(75)), (vec![90, 80], vec![80], vec![75]));
}

/// Builds without softmetal find what others made.
#[test]
fn the_translator_is_the_one_that_is_written_down() {
    let (found, known) = (softmetal::ptx::fingerprint(), WRITTEN_DOWN.trim_ascii());
    assert_eq!(found, known, "softmetal has changed: src/cuda/ptx/translator.txt has to be {found}");
}

#[test]
fn threads_that_write_the_same_file_leave_it_whole_and_nothing_else() {
    let folder = Folder::new("parts");
    let text = "x".repeat(1 << 16);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|_| keep(&folder.0, "f.ptx", &text).unwrap()));
        }
    });
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["f.ptx"]);
    assert_eq!(fs::read_to_string(folder.0.join("f.ptx")).unwrap(), text);
}

#[test]
fn a_folder_that_is_named_comes_before_the_cache_and_one_that_is_not_there_is_told() {
    let none = Constants::NONE;
    let wanted = wanted("a", &none);
    let name = wanted.file(90);
    let by = |constants: &str| Translation { constants: constants.to_owned(), ..translation() };
    let (named, cache) =
        (Folder::new("named").with(&name, &by("named")), Folder::new("cache").with(&name, &by("cache")));
    let of = |named: Option<&Path>| Translator::of(named.map(Path::to_owned), Some(cache.0.clone()), None);
    let both = of(Some(&named.0));
    assert_eq!(both.get(&wanted).unwrap().constants, "named");
    assert_eq!((both.into.as_deref(), both.notes()), (Some(&*cache.0), vec![]));
    let gone = of(Some(Path::new("/there is no such folder")));
    assert_eq!(gone.get(&wanted).unwrap().constants, "cache");
    let note =
        "METALLIC_PTX names `/there is no such folder`, which is no folder: kernels come from elsewhere";
    assert_eq!(gone.notes(), [note]);
}

#[test]
fn without_a_compiler_older_kernels_serve_and_are_told_and_what_is_damaged_is_named() {
    let none = Constants::NONE;
    let wanted = wanted("a", &none);
    let folder = Folder::new("older").with(&wanted.file(80), &translation());
    let translator = without_compiler(vec![folder.0.clone()]);
    assert_eq!(translator.get(&wanted), Ok(translation()));
    let notes = translator.notes();
    assert!(notes.len() == 1, "{notes:?}");
    for part in ["capability 8.0 serve", "`f`", "9.0", "--capability 90"] {
        assert!(notes[0].contains(part), "{part}: {notes:?}");
    }
    let file = folder.0.join(wanted.file(80));
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 9]).unwrap();
    let error = without_compiler(vec![folder.0.clone()]).get(&wanted).unwrap_err().to_string();
    for part in [&*wanted.file(80), "16 bytes of text where 25 were written", "of this version"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// What only a compiler shows.
#[cfg(feature = "soft")]
mod made {
    use super::*;

    const SOURCE: &str = "#include <metal_stdlib>\nusing namespace metal;\n\
        constant uint N [[function_constant(0)]];\n\
        struct P { uint n; float x; };\n\
        kernel void f(constant P& p [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]])\n\
        { if (i < p.n) out[i] = N; }\n";

    fn maker(folder: &Folder) -> Option<Translator> {
        let maker = Translator::into_folder(&folder.0);
        match maker.compiler() {
            Ok(_) => Some(maker),
            Err(reason) => {
                metallic_testkit::missing(&reason);
                None
            }
        }
    }

    #[test]
    fn a_kernel_is_made_once_and_found_after_that_also_without_a_compiler() {
        let folder = Folder::new("test");
        let constants = Constants::of([77]);
        let wanted = wanted(SOURCE, &constants);
        let Some(maker) = maker(&folder) else { return };
        let made = maker.get(&wanted).unwrap();
        assert_eq!(made.takes, Takes { params: 8, addresses: 1 });
        assert!(made.text.to_string_lossy().contains("77"), "{made:?}");
        let without = without_compiler(vec![folder.0.clone()]);
        assert_eq!(without.get(&wanted).unwrap(), made);
        assert!(made.begins_early(), "made for 9.0");
        let older = maker.get(&Wanted { capability: 80, ..wanted }).unwrap();
        assert!(!older.begins_early() && older.entry == made.entry, "{older:?}");
        assert_eq!(maker.notes(), [""; 0]);
        // What is damaged is made again, and told.
        let file = folder.0.join(wanted.file(90));
        let whole = fs::read_to_string(&file).unwrap();
        fs::write(&file, whole.replace("77", "78")).unwrap();
        assert!(maker.put(&wanted).unwrap().0, "it is made");
        assert_eq!(fs::read_to_string(&file).unwrap(), whole);
        assert!(!maker.put(&wanted).unwrap().0, "it is there");
        let notes = maker.notes();
        assert!(notes.len() == 1 && notes[0].contains("its checksum"), "{notes:?}");
        fs::remove_file(&file).unwrap();
        assert_eq!(without.get(&wanted).unwrap(), older, "what was made for older ones runs too");
        let other = Wanted { constants: &Constants::of([78]), ..wanted };
        let error = without.get(&other).unwrap_err().to_string();
        for part in ["there is no clang", "metallic tool ptx", "`f`", "N=78", "9.0", "metallic-ptx-test"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_an_error_also_where_an_older_one_lies() {
        let source = format!("#if MSL_PTX_SM >= 90\n#error not for these\n#endif\n{SOURCE}");
        let (folder, constants) = (Folder::new("wrong"), Constants::of([5]));
        let wanted = wanted(&source, &constants);
        let Some(maker) = maker(&folder) else { return };
        maker.get(&Wanted { capability: 80, ..wanted }).unwrap();
        let error = maker.get(&wanted).unwrap_err().to_string();
        assert!(error.contains("not for these"), "{error}");
    }

    #[test]
    fn what_cannot_be_kept_is_made_all_the_same_and_told() {
        let (folder, constants) = (Folder::new("unkept"), Constants::of([6]));
        fs::write(&folder.0, "a file where a folder should be").unwrap();
        let Some(maker) = maker(&folder) else { return };
        maker.get(&Wanted { capability: 80, ..wanted(SOURCE, &constants) }).unwrap();
        let notes = maker.notes();
        assert!(notes.len() == 1 && notes[0].contains("compiled at every start"), "{notes:?}");
        fs::remove_file(&folder.0).unwrap();
    }
}

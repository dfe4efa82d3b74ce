use super::*;

#[test]
fn every_default_is_one_of_the_values_its_field_may_have() {
    Tuning::DEFAULT.check().unwrap();
    for (kind, name) in [
        ("cuda", "NVIDIA H200"),
        ("metal", "Apple M4 Pro"),
        ("metal", "Apple M4 Max"),
        ("metal", "Apple M2 Ultra"),
    ] {
        built_in(kind, name, 132).0.check().unwrap();
    }
    for field in Tuning::FIELDS {
        assert!(field.values.is_sorted() && field.values.len() > 1, "{}", field.name);
        assert!(field.about.ends_with('.') && !field.about.contains("  "), "{}", field.about);
        assert_eq!(Field::named(field.name).map(|found| found.values), Some(field.values));
    }
}

#[test]
fn a_field_takes_its_values_and_refuses_others_by_name() {
    for field in Tuning::FIELDS {
        for value in field.values {
            let changed = field.with(&Tuning::DEFAULT, *value).unwrap();
            assert_eq!(field.of(&changed), *value);
            let others: Vec<_> = changed.differing(&Tuning::DEFAULT).map(|field| field.name).collect();
            assert!(others.is_empty() || others == [field.name], "{others:?}");
        }
        let error = field.with(&Tuning::DEFAULT, 77).unwrap_err().to_string();
        assert!(error.contains(field.name) && error.contains("77"), "{error}");
    }
    let error = Tuning { cell_groups: 3, ..Tuning::DEFAULT }.check().unwrap_err().to_string();
    assert_eq!(error, "`cell_groups` is 3; it may be 1, 2 or 4");
    assert_eq!(
        Tuning { busy: 200, query_rows: 16, ..Tuning::DEFAULT }.to_string(),
        "busy=200, query_rows=16"
    );
}

#[test]
fn devices_have_tables_by_their_names_which_say_where_they_come_from() {
    let many = Tuning { attention_reach: 8, attention_span: 4, heads_apart: 2, ..Tuning::DEFAULT };
    for (kind, name, cores, expected) in [
        ("cuda", "NVIDIA H200", 132, (many, Origin::Measured)),
        ("cuda", "NVIDIA A100", 108, (many, Origin::Reasoned)),
        ("cuda", "NVIDIA RTX A2000", 26, (Tuning::DEFAULT, Origin::Default)),
        ("soft", "Metal in software", 0, (Tuning::DEFAULT, Origin::Default)),
        ("metal", "Apple M1", 0, (Tuning::DEFAULT, Origin::Reasoned)),
        ("metal", "Apple M1 Ultra", 0, (many, Origin::Reasoned)),
        ("metal", "Apple M3 Ultra", 0, (many, Origin::Reasoned)),
        ("metal", "Apple M9", 0, (Tuning::DEFAULT, Origin::Default)),
        ("metal", "Apple M2 Mega", 0, (Tuning::DEFAULT, Origin::Default)),
        ("metal", "AMD Radeon Pro 5500M", 0, (Tuning::DEFAULT, Origin::Default)),
        ("null", "", 0, (Tuning::DEFAULT, Origin::Default)),
    ] {
        assert_eq!(built_in(kind, name, cores), expected, "{name}");
    }
    let [pro, max] = ["Apple M2 Pro", "Apple M4 Max"].map(|name| built_in("metal", name, 0).0);
    assert_eq!((pro.attention_reach, max.attention_reach, max.heads_apart), (16, 8, 1));
}

#[test]
fn numbers_in_use_are_shared_by_clones_and_checked() {
    let tuned = Tuned::new();
    let clone = tuned.clone();
    assert_eq!((clone.get(), clone.version()), (None, 0));
    let none = clone.plans();
    let planned = |plans: &[u64]| {
        tuned.clear();
        for plan in plans {
            tuned.planned(*plan);
        }
        clone.plans()
    };
    assert_eq!(planned(&[7, 3, 7]), planned(&[3, 7]));
    assert!(planned(&[7]) != planned(&[3]) && planned(&[3]) != none);
    let version = clone.version();
    let wide = Tuning { busy: 400, ..Tuning::DEFAULT };
    tuned.set(wide).unwrap();
    assert_eq!((clone.get(), clone.version(), clone.plans()), (Some(wide), version + 1, none));
    assert_eq!(clone.source(), TuningSource::Caller);
    let error = clone.set(Tuning { busy: 3, ..wide }).unwrap_err();
    assert!(matches!(error, GpuError::Tuning { field: "busy", found: 3, .. }), "{error}");
    assert_eq!(tuned.get(), Some(wide), "what is refused changes nothing");
    clone.clear();
    assert_eq!((tuned.get(), tuned.source()), (None, TuningSource::BuiltIn));
}

//! Apple's chips in figures.
//!
//! Sources. Bandwidth, cores and memory: Apple's newsroom articles that introduced each chip ("Apple unleashes M1", "Introducing
//! M1 Pro and M1 Max", "Apple unveils M1 Ultra", "Apple unveils M2", "… M2 Pro and M2 Max", "… M2 Ultra", "… M3, M3 Pro, and M3
//! Max", "… M3 Ultra", "… M4 Pro and M4 Max", "… M5", "… M5 Pro and M5 Max") and the technical specifications of the Macs that
//! have them (support.apple.com). M1's bandwidth is in none of them: it is that of its 128 bits of LPDDR4X-4266.
//!
//! The maker publishes no clock of these GPUs. Those of M1 and M2 are what others have measured, and agree with the 2.6 and 3.6
//! teraflops that Apple gives for both; those of M3 and M4 are what public lists of hardware have; for M5 none was found, and
//! M4's is taken. Multiply-adds a cycle of a core (128 in F32, and as many in F16) are measured by others on M1 and M2
//! (`metal-benchmarks`) and taken for all. The matrix units of M5 (its "Neural Accelerators") are not counted: no kernel here
//! uses them.

/// A number, and whether the maker publishes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Whether it is the maker's own.
    pub published: bool,
}

/// A chip, by what bounds its GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Its name without that of its maker: `M2 Max`.
    pub name: &'static str,
    /// Cores of its GPU.
    pub cores: u32,
    /// Memory bandwidth, in 10⁹ bytes a second.
    pub bandwidth: Figure,
    /// GHz of the GPU. Never published.
    pub clock: f64,
    /// GiB of memory at most.
    pub memory: u32,
}

/// Multiply-adds a core starts in a cycle.
const LANES: f64 = 128.0;

impl Chip {
    /// Operations in F32 a second at most, a multiply-add as two; in F16 as many.
    pub fn flops(&self) -> f64 {
        2.0 * LANES * f64::from(self.cores) * self.clock * 1e9
    }

    /// Its name with its cores: `M2 Max (38)`.
    pub fn title(&self) -> String {
        format!("{} ({})", self.name, self.cores)
    }

    /// Chips that a device's name (`Apple M2 Max`), a chip's (`m2 max`) or a title (`M2 Max (38)`) may mean, the one with the
    /// most cores first.
    pub fn named(name: &str) -> Vec<&'static Chip> {
        let wanted = name.trim().to_lowercase();
        let wanted = wanted.strip_prefix("apple ").unwrap_or(&wanted);
        let fits = |chip: &&Chip| chip.name.to_lowercase() == wanted || chip.title().to_lowercase() == wanted;
        let mut found: Vec<&Chip> = CHIPS.iter().filter(fits).collect();
        found.sort_by_key(|chip| std::cmp::Reverse(chip.cores));
        found
    }

    /// The chips with the most cores of each name.
    pub fn largest() -> impl Iterator<Item = &'static Chip> {
        let larger =
            |chip: &Chip| CHIPS.iter().any(|other| other.name == chip.name && other.cores > chip.cores);
        CHIPS.iter().filter(move |chip| !larger(chip))
    }
}

const fn chip(name: &'static str, cores: u32, bandwidth: f64, clock: f64, memory: u32) -> Chip {
    Chip { name, cores, bandwidth: Figure { value: bandwidth, published: true }, clock, memory }
}

const fn unpublished(chip: Chip) -> Chip {
    Chip { bandwidth: Figure { published: false, ..chip.bandwidth }, ..chip }
}

/// Every chip of Macs, as far as it is known, oldest first. Where one is sold with fewer cores, or less bandwidth, it is there
/// as often.
pub const CHIPS: &[Chip] = &[
    unpublished(chip("M1", 7, 68.25, 1.278, 16)),
    unpublished(chip("M1", 8, 68.25, 1.278, 16)),
    chip("M1 Pro", 14, 200.0, 1.296, 32),
    chip("M1 Pro", 16, 200.0, 1.296, 32),
    chip("M1 Max", 24, 400.0, 1.296, 64),
    chip("M1 Max", 32, 400.0, 1.296, 64),
    chip("M1 Ultra", 48, 800.0, 1.296, 128),
    chip("M1 Ultra", 64, 800.0, 1.296, 128),
    chip("M2", 8, 100.0, 1.398, 24),
    chip("M2", 10, 100.0, 1.398, 24),
    chip("M2 Pro", 16, 200.0, 1.398, 32),
    chip("M2 Pro", 19, 200.0, 1.398, 32),
    chip("M2 Max", 30, 400.0, 1.398, 96),
    chip("M2 Max", 38, 400.0, 1.398, 96),
    chip("M2 Ultra", 60, 800.0, 1.398, 192),
    chip("M2 Ultra", 76, 800.0, 1.398, 192),
    chip("M3", 8, 100.0, 1.398, 24),
    chip("M3", 10, 100.0, 1.398, 24),
    chip("M3 Pro", 14, 150.0, 1.398, 36),
    chip("M3 Pro", 18, 150.0, 1.398, 36),
    chip("M3 Max", 30, 300.0, 1.398, 96),
    chip("M3 Max", 40, 400.0, 1.398, 128),
    chip("M3 Ultra", 60, 819.0, 1.398, 512),
    chip("M3 Ultra", 80, 819.0, 1.398, 512),
    chip("M4", 8, 120.0, 1.47, 32),
    chip("M4", 10, 120.0, 1.47, 32),
    chip("M4 Pro", 16, 273.0, 1.47, 64),
    chip("M4 Pro", 20, 273.0, 1.47, 64),
    chip("M4 Max", 32, 410.0, 1.47, 36),
    chip("M4 Max", 40, 546.0, 1.47, 128),
    chip("M5", 10, 153.0, 1.47, 32),
    chip("M5 Pro", 20, 307.0, 1.47, 64),
    chip("M5 Max", 40, 614.0, 1.47, 128),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_the_maker_gives_where_it_gives_any() {
        for (title, teraflops) in [("M1 (8)", 2.6), ("M2 (10)", 3.6)] {
            let found = Chip::named(title)[0].flops() / 1e12;
            assert!((found - teraflops).abs() < 0.05, "{title}: {found}");
        }
    }

    #[test]
    fn a_device_is_known_by_its_name_and_by_its_cores() {
        let titles = |name: &str| Chip::named(name).iter().map(|chip| chip.title()).collect::<Vec<_>>();
        assert_eq!(titles("Apple M2 Max"), ["M2 Max (38)", "M2 Max (30)"]);
        assert_eq!(titles("m3 max (30)"), ["M3 Max (30)"]);
        assert_eq!(titles("Apple M5"), ["M5 (10)"]);
        assert!(titles("NVIDIA H200").is_empty() && titles("").is_empty());
    }

    #[test]
    fn no_chip_is_there_twice_and_each_name_has_its_largest() {
        let titles: std::collections::BTreeSet<String> = CHIPS.iter().map(Chip::title).collect();
        assert_eq!(titles.len(), CHIPS.len());
        let names: std::collections::BTreeSet<&str> = CHIPS.iter().map(|chip| chip.name).collect();
        assert_eq!(Chip::largest().map(|chip| chip.name).collect::<std::collections::BTreeSet<_>>(), names);
        assert_eq!(Chip::largest().count(), names.len());
    }
}

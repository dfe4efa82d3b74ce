//! The browser in which the server's page is tested, and the program that drives it.

use anyhow::{Result, bail};

use crate::process::{apt_install, run, works};

/// The program that drives the browser; it finds its browser by itself.
const DRIVER: &str = "chromedriver";
/// As Debian calls the browser and its driver.
const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

/// Whether tests would find one.
pub(crate) fn is_there() -> bool {
    works(DRIVER, &["--version"])
}

/// Installs one where there is none.
pub(crate) fn install() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    if cfg!(target_os = "macos") {
        let casks = ["google-chrome", DRIVER];
        eprintln!("installing by brew: {}", casks.join(" "));
        run(std::process::Command::new("brew").args(["install", "--cask"]).args(casks))?;
    } else {
        apt_install(&PACKAGES)?;
    }
    if !is_there() {
        bail!("{} were installed, and there is no {DRIVER}", PACKAGES.join(" and "));
    }
    Ok(())
}

//! The place of this user's images, and their names as users see them.

use volt_image::reference::Name;
use volt_image::store::Store;

use crate::failure::Failure;
use crate::run_dir::data_dir;

/// The images of this user.
///
/// # Errors
/// The environment names no directory, or the host cannot make it.
pub(super) fn store() -> Result<Store, Failure> {
    Ok(Store::open(data_dir::of_user("images")?)?)
}

/// A name as short as docker takes it.
pub(super) fn short_name(name: &str) -> String {
    name.parse().map_or_else(|_| name.to_owned(), |name: Name| name.short())
}

//! Linker flags of the backend library.

fn main() {
    // Threads of the server keep thread-local state of this library, so it is never unmapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}

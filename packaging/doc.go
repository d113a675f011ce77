// Package packaging has what packages of goiser are made of: see docs/INSTALL.md. Its Go files are tests of that, and the
// one that makes the schema of the configuration for editors.
package packaging

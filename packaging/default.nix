# A build with nixpkgs: nix-build -E 'with import <nixpkgs> { }; python3Packages.callPackage ./packaging { }'
{
  lib,
  buildPythonPackage,
  cmake,
  ninja,
  scikit-build-core,
  pybind11,
  torch,
  llvmlite,
  clang,
}:

let
  pyproject = builtins.fromTOML (builtins.readFile ../pyproject.toml);
in
buildPythonPackage {
  pname = pyproject.project.name;
  version = pyproject.project.version;
  pyproject = true;

  src = lib.cleanSource ../.;

  build-system = [
    scikit-build-core
    pybind11
    cmake
    ninja
  ];
  nativeBuildInputs = [ clang ]; # for the bitcode
  dependencies = [
    torch
    llvmlite
  ];

  # scikit-build-core calls CMake.
  dontUseCmakeConfigure = true;
  env = {
    FOURFOLD_CPU_LEVELS = "ON";
    FOURFOLD_BITCODE = "ON";
    FOURFOLD_CUDA = "OFF";
    FOURFOLD_TORCH_HEADERS = "OFF"; # gradients in C++ for this torch alone
  };

  pythonImportsCheck = [ "fourfold" ];

  meta = {
    description = pyproject.project.description;
    homepage = pyproject.project.urls.Homepage;
    license = lib.licenses.bsd3;
    platforms = lib.platforms.linux ++ lib.platforms.darwin;
  };
}

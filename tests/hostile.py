"""Archives that somebody made to do harm: one for each known way, harmless but for a marker that it would touch.

Each is a function of a directory that writes the archive there and returns its path; what it would touch if it
succeeded is `marker(directory)`.
"""

import io
import json
import zipfile
from base64 import b64encode
from marshal import dumps

import h5py
import keras
import numpy as np

L = keras.layers

# name -> (writes it, status, words of the reason)
HOSTILE = {}


def marker(directory):
    return directory / "marker"


def hostile(status, *words):
    def add(write):
        HOSTILE[write.__name__] = (write, status, words)
        return write

    return add


def plain(directory):
    """A harmless archive's members: configuration, metadata and weights."""
    keras.utils.set_random_seed(0)
    keras.Sequential([keras.Input((None, 2), name="x"), L.GRU(3, name="gru"), L.Dense(1, name="dense")]).save(
        directory / "plain.keras"
    )
    with zipfile.ZipFile(directory / "plain.keras") as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(found["config.json"]), found["metadata.json"], found["model.weights.h5"]


def write(directory, config, metadata, weights, **others):
    path = directory / "hostile.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config if isinstance(config, bytes) else json.dumps(config))
        archive.writestr("metadata.json", metadata)
        archive.writestr("model.weights.h5", weights)
        for name, content in others.items():
            archive.writestr(name, content)
    return path


def with_layer(directory, layer):
    config, metadata, weights = plain(directory)
    config["config"]["layers"].insert(1, layer)
    return write(directory, config, metadata, weights)


def with_config(directory, change):
    config, metadata, weights = plain(directory)
    change(config, config["config"]["layers"])
    return write(directory, config, metadata, weights)


def with_weights(directory, change):
    config, metadata, weights = plain(directory)
    path = directory / "model.weights.h5"
    path.write_bytes(weights)
    with h5py.File(path, "r+") as file:
        change(file, "layers/dense/vars/0")
    return write(directory, config, metadata, path.read_bytes())


def touching(directory):
    return f"open({str(marker(directory))!r}, 'w')"


def code(directory):
    return b64encode(dumps(compile(touching(directory), "x", "eval"))).decode()


@hostile(422, "lambda", "Lambda")
def lambda_with_code(directory):
    function = {"class_name": "__lambda__", "config": {"value": code(directory)}}
    config = {"name": "lambda", "function": function, "arguments": {}}
    return with_layer(
        directory, {"module": "keras.layers", "class_name": "Lambda", "config": config, "registered_name": None}
    )


@hostile(422, "__lambda__", "dense")
def lambda_as_an_activation(directory):
    def change(config, layers):
        layers[-1]["config"]["activation"] = {"class_name": "__lambda__", "config": {"value": code(directory)}}

    return with_config(directory, change)


@hostile(422, "safe_mode", "lambda")
def lambda_with_safe_mode_off_inside(directory):
    inner = {"name": "inner", "layers": [], "safe_mode": False}
    lambdas = {"class_name": "__lambda__", "config": {"value": code(directory)}}
    layer = {
        "module": "keras.layers",
        "class_name": "Lambda",
        "config": {"name": "safe_mode lambda", "function": lambdas, "safe_mode": False},
        "safe_mode": False,
    }
    inner["layers"].append(layer)
    return with_layer(directory, {"module": "keras", "class_name": "Sequential", "config": inner})


@hostile(422, "enable_unsafe_deserialization", "dense")
def safe_mode_switched_off_by_a_function(directory):
    def change(config, layers):
        layers[-1]["config"]["activation"] = {
            "module": "keras.config",
            "class_name": "function",
            "config": "enable_unsafe_deserialization",
            "registered_name": "enable_unsafe_deserialization",
        }

    return with_config(directory, change)


@hostile(422, "os.system")
def module_names_a_function(directory):
    layer = {
        "module": "os",
        "class_name": "system",
        "config": {"name": "x", "command": f"touch {marker(directory)}"},
        "registered_name": "system",
    }
    return with_layer(directory, layer)


@hostile(422, "subprocess.Popen")
def module_names_a_class(directory):
    layer = {
        "module": "subprocess",
        "class_name": "Popen",
        "config": {"args": ["touch", str(marker(directory))]},
        "registered_name": None,
    }
    return with_layer(directory, layer)


@hostile(422, "keras.utils")
def module_names_a_function_of_keras(directory):
    layer = {
        "module": "keras.utils",
        "class_name": "get_file",
        "config": {"name": "x", "origin": f"file://{directory / 'plain.keras'}", "cache_dir": str(directory)},
        "registered_name": None,
    }
    return with_layer(directory, layer)


@hostile(422, "dense", "'eval'")
def function_of_builtins(directory):
    def change(config, layers):
        layers[-1]["config"]["activation"] = {
            "module": "builtins",
            "class_name": "function",
            "config": "eval",
            "registered_name": "eval",
        }
        layers[-1]["config"]["bias_initializer"] = {"module": "builtins", "class_name": "exec", "config": {}}

    return with_config(directory, change)


@hostile(422, "pwn>Dense")
def registered_name_of_another(directory):
    def change(config, layers):
        layers[-1]["registered_name"] = "pwn>Dense"

    return with_config(directory, change)


@hostile(422, "shutil.Dense")
def module_of_another(directory):
    def change(config, layers):
        layers[-1]["module"] = "shutil"

    return with_config(directory, change)


@hostile(422, "dense", "os.system")
def string_names_a_function(directory):
    def change(config, layers):
        layers[-1]["config"]["activation"] = "os.system"

    return with_config(directory, change)


@hostile(422, "dense", "kernel_initializer")
def string_names_an_initializer(directory):
    def change(config, layers):
        layers[-1]["config"]["kernel_initializer"] = "subprocess.Popen"

    return with_config(directory, change)


@hostile(422, "TFSMLayer", "SavedModel")
def saved_model_as_a_layer(directory):
    config = {"name": "t", "filepath": str(directory), "call_endpoint": "serve"}
    return with_layer(
        directory, {"module": "keras.layers", "class_name": "TFSMLayer", "config": config, "registered_name": None}
    )


@hostile(422, "TorchModuleWrapper", "PyTorch")
def torch_module(directory):
    config = {"name": "t", "module": b64encode(b"cposix\nsystem\n.").decode()}
    return with_layer(
        directory,
        {"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": config, "registered_name": None},
    )


@hostile(422, "StringLookup", "files")
def vocabulary_from_a_file(directory):
    config = {"name": "s", "vocabulary": "/etc/passwd"}
    return with_layer(
        directory, {"module": "keras.layers", "class_name": "StringLookup", "config": config, "registered_name": None}
    )


@hostile(422, "TextVectorization")
def vocabulary_of_texts(directory):
    config = {"name": "s", "vocabulary": "/etc/passwd", "standardize": None}
    layer = {"module": "keras.layers", "class_name": "TextVectorization", "config": config, "registered_name": None}
    return with_layer(directory, layer)


@hostile(422, "spec")
def type_specification(directory):
    def change(config, layers):
        layers[-1]["config"]["units"] = {
            "class_name": "__typespec__",
            "spec_name": "spec",
            "module": "os",
            "registered_name": "system",
            "config": [],
        }

    return with_config(directory, change)


@hostile(422, "Evil")
def class_of_somebody(directory):
    return with_layer(
        directory, {"module": None, "class_name": "Evil", "config": {"name": "e"}, "registered_name": "evil>Evil"}
    )


@hostile(422, "link to another place or file")
def external_link(directory):
    (directory / "secret.h5").write_bytes(b"")
    with h5py.File(directory / "secret.h5", "w") as file:
        file["x"] = np.ones((3, 1), "f4")

    def change(file, name):
        del file[name]
        file[name] = h5py.ExternalLink(str(directory / "secret.h5"), "x")

    return with_weights(directory, change)


@hostile(422, "link to another place or file")
def soft_link(directory):
    def change(file, name):
        del file[name]
        file[name] = h5py.SoftLink("/layers/gru/cell/vars/0")

    return with_weights(directory, change)


@hostile(422, "linked to twice")
def circle_of_links(directory):
    def change(file, name):
        file["layers/dense/again"] = file["layers"]

    return with_weights(directory, change)


@hostile(422, "other files")
def external_storage(directory):
    (directory / "secret").write_bytes(b"\0" * 64)

    def change(file, name):
        del file[name]
        file.create_dataset(name, (3, 1), "f4", external=[(str(directory / "secret"), 0, 12)])

    return with_weights(directory, change)


@hostile(422, "other files")
def virtual_data_set(directory):
    with h5py.File(directory / "secret.h5", "w") as file:
        file["x"] = np.ones((3, 1), "f4")

    def change(file, name):
        del file[name]
        layout = h5py.VirtualLayout((3, 1), "f4")
        layout[:] = h5py.VirtualSource(str(directory / "secret.h5"), "x", (3, 1))
        file.create_virtual_dataset(name, layout)

    return with_weights(directory, change)


@hostile(422, "numbers")
def weights_that_promise_too_much(directory):
    def change(file, name):
        del file[name]
        file.create_dataset(name, (10**9, 10**6), "f4", chunks=(1, 1024), compression="gzip")

    return with_weights(directory, change)


@hostile(422, "chunks")
def chunks_that_are_bombs(directory):
    def change(file, name):
        del file[name]
        file.create_dataset(name, (6000, 6000), "f8", chunks=(6000, 6000), compression="gzip")

    return with_weights(directory, change)


@hostile(422, "not numbers")
def weights_that_are_texts(directory):
    def change(file, name):
        del file[name]
        file.create_dataset(name, data=["a", "b", "c"])

    return with_weights(directory, change)


@hostile(422, "too many attributes")
def attributes_without_end(directory):
    def change(file, name):
        for i in range(1000):
            file["layers"].attrs[f"a{i}"] = i

    return with_weights(directory, change)


@hostile(422, "belong")
def weights_of_another_model(directory):
    def change(file, name):
        del file[name]
        file[name] = np.ones((4, 4), "f4")

    return with_weights(directory, change)


@hostile(422, "belong")
def weights_that_are_missing(directory):
    def change(file, name):
        del file["layers/dense"]

    return with_weights(directory, change)


@hostile(422, "dense", "units")
def units_without_end(directory):
    def change(config, layers):
        layers[-1]["config"]["units"] = 10**9

    return with_config(directory, change)


@hostile(422, "gru", "weights")
def parameters_without_end(directory):
    def change(config, layers):
        layers[1]["config"]["units"] = 60_000

    return with_config(directory, change)


@hostile(422, "limit")
def shape_bomb_in_the_build_configuration(directory):
    def change(config, layers):
        layers[1]["build_config"]["input_shape"] = [None, None, 10**12]

    return with_config(directory, change)


@hostile(422, "weights")
def shape_bomb_within_the_bounds(directory):
    def change(config, layers):
        layers[1]["build_config"]["input_shape"] = [None, None, 9_999_999]
        layers[1]["config"]["units"] = 60_000

    return with_config(directory, change)


@hostile(422, "limit")
def input_without_end(directory):
    def change(config, layers):
        layers[0]["config"]["batch_shape"] = [None, None, 10**11]

    return with_config(directory, change)


@hostile(422, "limit", "layers")
def layers_without_end(directory):
    def change(config, layers):
        layers.extend(
            {"module": "keras.layers", "class_name": "Identity", "config": {"name": f"i{i}"}} for i in range(5000)
        )

    return with_config(directory, change)


@hostile(422, "nested too deeply")
def nested_without_end(directory):
    def change(config, layers):
        value = []
        for _ in range(400):
            value = [value]
        layers[-1]["config"]["trainable"] = value

    return with_config(directory, change)


@hostile(400, "JSON")
def json_nested_without_end(directory):
    _, metadata, weights = plain(directory)
    return write(directory, b"[" * 100_000 + b"]" * 100_000, metadata, weights)


@hostile(422, "plain name")
def name_that_climbs(directory):
    def change(config, layers):
        layers[-1]["config"]["name"] = "../../marker"

    return with_config(directory, change)


@hostile(422, "plain name")
def name_of_dots(directory):
    def change(config, layers):
        layers[-1]["config"]["name"] = ".."

    return with_config(directory, change)


@hostile(422, "marker")
def member_that_climbs(directory):
    config, metadata, weights = plain(directory)
    return write(directory, config, metadata, weights, **{"../marker": b"x"})


@hostile(422, "/marker")
def member_with_an_absolute_path(directory):
    config, metadata, weights = plain(directory)
    return write(directory, config, metadata, weights, **{str(marker(directory)): b"x"})


@hostile(422, "assets/vocabulary.txt")
def member_for_a_layer(directory):
    config, metadata, weights = plain(directory)
    return write(directory, config, metadata, weights, **{"assets/vocabulary.txt": b"x"})


@hostile(422, "two members")
def member_twice(directory):
    path = write(directory, *plain(directory))
    with zipfile.ZipFile(path, "a") as archive:
        archive._didModify = True
        info = zipfile.ZipInfo("config.json")
        archive.NameToInfo.pop("config.json")
        archive.writestr(info, b"{}")
    return path


@hostile(422, "config.json", "bytes")
def configuration_that_unpacks_without_end(directory):
    path = directory / "hostile.keras"
    _, metadata, weights = plain(directory)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * 200_000_000)
        archive.writestr("metadata.json", metadata)
        archive.writestr("model.weights.h5", weights)
    return path


@hostile(422, "model.weights.h5", "bytes")
def weights_that_unpack_without_end(directory):
    path = directory / "hostile.keras"
    config, metadata, _ = plain(directory)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("metadata.json", metadata)
        with archive.open("model.weights.h5", "w", force_zip64=True) as file:
            for _ in range(600):
                file.write(bytes(1_000_000))
    return path


@hostile(400, ".keras archive")
def member_that_lies_about_its_size(directory):
    path = write(directory, *plain(directory))
    raw = bytearray(path.read_bytes())
    # The size once unpacked, in the central directory's entry of the first member.
    at = raw.index(b"PK\x01\x02") + 24
    raw[at : at + 4] = (5).to_bytes(4, "little")
    path.write_bytes(raw)
    return path


@hostile(422, "HDF5")
def hdf5_named_keras(directory):
    network = keras.Sequential([keras.Input((None, 2)), L.GRU(3)])
    path = directory / "hostile.keras"
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.attrs["model_config"] = json.dumps(network.get_config())
    path.write_bytes(buffer.getvalue())
    return path


@hostile(422, "SavedModel")
def saved_model_in_a_zip(directory):
    path = directory / "hostile.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("export/saved_model.pb", b"x")
        archive.writestr("export/variables/variables.index", b"x")
    return path


@hostile(400, "config.json")
def zip_of_something_else(directory):
    path = directory / "hostile.keras"
    with zipfile.ZipFile(path, "w"):
        pass
    return path


@hostile(400, "weights")
def weights_that_are_no_hdf5(directory):
    config, metadata, _ = plain(directory)
    return write(directory, config, metadata, b"\x89HDF\r\n\x1a\n" + b"\xff" * 500)


@hostile(400, ".keras archive")
def pickle_named_keras(directory):
    path = directory / "hostile.keras"
    path.write_bytes(b"cposix\nsystem\n(S'touch " + str(marker(directory)).encode() + b"'\ntR.")
    return path


@hostile(422, "class")
def subclassed_model(directory):
    config, metadata, weights = plain(directory)
    config = {"module": "evil", "class_name": "Evil", "config": {}, "registered_name": "evil>Evil"}
    return write(directory, config, metadata, weights)

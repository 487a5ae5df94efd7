"""A layer of somebody's own."""

import keras


@keras.saving.register_keras_serializable(package="own")
class Scale(keras.layers.Layer):
    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return self.factor * x

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}
